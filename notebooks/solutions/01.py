"""Solutions of notebook 01, what a derivative is to a program. Each part goes in place of the blank cell of its exercise."""

# %% exercise 1
slope_at_20 = central_difference(distance, 20.0, 1e-4)


# %% exercise 2
def second(f, x, h):
    return (f(x + h) - 2 * f(x) + f(x - h)) / h**2


# %% exercise 3
# Small enough for the curve, large enough for the digits.
best = min((1e-1, 1e-5, 1e-9, 1e-13), key=lambda h: abs(central_difference(math.sin, 1.0, h) - math.cos(1.0)))

# %% exercise 4
# One for each input, and one at the start.
runs_needed = 1000 + 1

# %% quiz
# b, c, a
