"""Solutions of notebook 03, the chain rule, drawn. Each part goes in place of the blank cell of its exercise."""

# %% exercise 1
# Each use of x contributes the product of the other two.
stop = tj.stop_gradient
parts = [
    gradient(lambda x: x * stop(x) * stop(x)),
    gradient(lambda x: stop(x) * x * stop(x)),
    gradient(lambda x: stop(x) * stop(x) * x),
]

# %% exercise 2
# The power rule through the base, the exponential rule through the exponent.
stop = tj.stop_gradient
through_base = gradient(lambda x: x ** stop(x))
through_exponent = gradient(lambda x: stop(x) ** x)

# %% exercise 3
# One for each use; the mean divides by their number.
numbers = jnp.arange(5.0)
in_sum = gradient(lambda b: (numbers + b).sum())
in_mean = gradient(lambda b: (numbers + b).mean())

# %% quiz
# b, a, b
