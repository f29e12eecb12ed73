"""Functions become ops."""
