"""Solutions of notebook 05, build the engine yourself. Each part goes in place of the blank cell of its exercise."""


# %% exercise 1
def cos_rule(ct, out, x, **_):
    return (-ct * jnp.sin(x),)


RULES["cos"] = cos_rule


# %% exercise 2
def max_rule(ct, out, x, axes, **_):
    largest = x == jnp.expand_dims(out, axes)
    return (jnp.expand_dims(ct, axes) * largest,)


RULES["reduce_max"] = max_rule


# %% exercise 3
def leading(tape, wanted):
    reached, names = set(wanted), []
    for equation, _, _ in tape:
        variables = [atom for atom in equation.invars if not hasattr(atom, "val")]
        if reached & set(variables):
            reached.update(equation.outvars)
            names.append(equation.primitive.name)
    return names


# %% quiz
# b, c, a
