"""Solutions of notebook 15, find the bug. Each part goes in place of the blank cell of its exercise."""


# %% exercise 1
# It overwrote instead of adding: the oldest mistake of all.
def better_accumulate(old, new):
    return new if old is None else old + new


# %% exercise 2
wrong_rule = "div"  # the second slope has lost its minus: compare each rule with a finite difference


# %% exercise 3
# Gradients come from the end.
def better_order(program):
    return program[::-1]


# %% exercise 4
# Each bias was used five times.
def bias_gradient(ct, bias):
    return ct.sum(axis=0)


# %% exercise 5
# The derivative of x squared is 2x, and the rule says x.
point = jnp.array([0.3])
factor = float(jax.grad(lambda x: square_norm(x))(point)[0] / (2 * point[0]))


# %% exercise 6
# The slope of a square root at zero is infinite: protect its argument.
def safe_length(x):
    square = jnp.sum(x * x)
    return jnp.where(square > 0, jnp.sqrt(jnp.where(square > 0, square, 1.0)), 0.0)


# %% exercise 7
# `scale.item()` is a Python number: the tape knows nothing of it.
missing_because = tj.explain(total, scale).cause

# %% exercise 8
first_wrong = 2  # at the first step the sum is empty, so the sum is the gradient

# %% quiz
# c, b, a
