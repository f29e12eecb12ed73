"""From a Python function to its program: a flat list of equations."""
