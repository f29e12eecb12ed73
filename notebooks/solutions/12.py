"""Solutions of notebook 12, verify your code. Each part goes in place of the blank cell of its exercise."""

# %% exercise 1
# This one is right.
swish_ok = tj.verify(lambda x: swish(x).sum(), jnp.linspace(-3, 3, 7)).ok

# %% exercise 2
found = tj.verify(lambda x, limit: clip_gently(x, limit).sum(), jnp.linspace(-0.5, 1, 5), jnp.array(0.7))
suspect = next(row.input for row in found.rows if row.verdict == "wrong")


# %% exercise 3
def clip_backward(kept, ct):
    x, limit = kept
    t = jnp.tanh(x / limit)
    return ct * (1 - t**2), jnp.sum(ct * (t - x / limit * (1 - t**2)))


clip_gently.defvjp(lambda x, limit: (clip_gently(x, limit), (x, limit)), clip_backward)

# %% quiz
# b, c, a
