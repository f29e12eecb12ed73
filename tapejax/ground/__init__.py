"""What everything stands on: lines, callers, and what differs between jax releases."""
