"""Measure tapejax against its peers, side by side: `python -m benchmarks` (see docs/benchmarks.md)."""
