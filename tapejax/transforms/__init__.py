"""Functions of functions: grad, vjp, jvp, jit."""
