"""Solutions of notebook 11, your own action. Each part goes in place of the blank cell of its exercise."""


# %% exercise 1
@tj.custom_op
def reverse_gradient(x):
    return x * 1.0


def flip(ct, out, x):
    return (-ct,)


reverse_gradient.defbackward(flip)


# %% exercise 2
@tj.custom_op
def scaled(x, s):
    return x * s


def scaled_backward(ct, out, x, s):
    return ct * s, (ct * x).sum()  # s was used for every element: its gradients add up


scaled.defbackward(scaled_backward)
# %% exercise 3
# A rule of your own may be more stable than the code.
at_100 = by_the_rule(softplus, jnp.array([100.0]))[0]

# %% quiz
# c, a, b
