"""Tensors, their gradients and their random numbers."""
