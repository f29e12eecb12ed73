"""Tests that try to break tapejax, written from its documentation alone and judged by jax."""
