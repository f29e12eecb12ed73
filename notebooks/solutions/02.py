"""Solutions of notebook 02, a tape in ten lines. Each part goes in place of the blank cell of its exercise."""

# %% exercise 1
# The actions are sin, multiply, sum.
import tapejax.numpy as tnp

with tj.Tape() as sine_tape:
    y = (tnp.sin(x) * x).sum()

count = len(sine_tape)
slopes = sine_tape.backward(y)[x]

# %% exercise 2
# 2 * (2 * 3 + 1).
w = tj.tensor(2.0, requires_grad=True)
inside = w * 3 + 1
inner_slope = tj.backward(inside**2)[inside]


# %% exercise 3
# The curvature along the offset is 2, so steps above 1.0 overshoot.
def last_loss(rate):
    slope, offset = jnp.array(0.0), jnp.array(0.0)
    for _ in range(60):
        a, b = tj.tensor(slope, requires_grad=True), tj.tensor(offset, requires_grad=True)
        loss = ((a * points + b - heights) ** 2).mean()
        grads = tj.backward(loss)
        slope, offset = slope - rate * grads[a], offset - rate * grads[b]
    return loss.item()


losses = {rate: last_loss(rate) for rate in (0.5, 1.0, 1.5, 2.0)}
too_large = min(rate for rate, loss in losses.items() if loss > history[0])
losses

# %% quiz
# a, c, b
