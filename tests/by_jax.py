"""What jax itself finds, from one compiled program: op by op, every op at every shape is a program of its own."""

import jax
import jax.numpy as jnp


def vjp(function, *args, ct=jnp.ones_like):
    """(the value, the gradients of all arguments) by jax. ct: the cotangent, made from the value."""

    def both(*args):
        out, pull = jax.vjp(function, *args)
        return out, pull(ct(out))

    return jax.jit(both)(*args)
