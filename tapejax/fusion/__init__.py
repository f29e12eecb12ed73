"""Calls that are deferred and run together, as one action."""
