"""Solutions of notebook 10, numerical trouble. Each part goes in place of the blank cell of its exercise."""

# %% exercise 1
# 0 log 0: the value of log is minus infinity, and 0 times infinity is no number.
born = tj.find_nonfinite(entropy, jnp.array([0.5, 0.5, 0.0])).born.op


# %% exercise 2
# The second `where` is around the argument of log.
def safe_entropy(p):
    inside = jnp.where(p > 0, p, 1.0)
    return -jnp.where(p > 0, p * jnp.log(inside), 0.0).sum()


# %% exercise 3
cause = tj.explain(result, v).cause

# %% exercise 4
# 25 ** 29 * 30 is more than 3.4e38.
factor_too_large = 25.0

# %% quiz
# a, b, c
