"""The tape: actions, scopes, and what leaves it."""
