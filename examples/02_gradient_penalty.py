"""WGAN-GP: a critic whose gradient with respect to its input should have norm one, written with an eager tape.

The penalty is a function of a gradient, so the first backward is recorded: create_graph=True.
Run: python examples/02_gradient_penalty.py
"""

import jax
import jax.numpy as jnp

import tapejax as tj
import tapejax.numpy as tnp


def critic(p, x):
    hidden = tnp.tanh(x @ p["w1"] + p["b1"])
    return (hidden @ p["w2"])[:, 0]


def critic_loss(p, real, fake, mix):
    """The loss, on the tape that is current. `p` holds Tensors."""
    middle = tj.tensor(mix * real + (1.0 - mix) * fake, requires_grad=True)
    scores = critic(p, middle).sum()
    slope = tj.backward(scores, wrt=middle, create_graph=True)[middle]
    penalty = ((tnp.sqrt((slope**2).sum(axis=1)) - 1.0) ** 2).mean()
    return critic(p, fake).mean() - critic(p, real).mean() + 10.0 * penalty


def judge(p, real, fake, mix):
    """The same loss in jax, for comparison."""
    score = lambda x: (jnp.tanh(x @ p["w1"] + p["b1"]) @ p["w2"])[:, 0]
    slope = jax.grad(lambda x: score(x).sum())(mix * real + (1.0 - mix) * fake)
    penalty = jnp.mean((jnp.sqrt((slope**2).sum(axis=1)) - 1.0) ** 2)
    return score(fake).mean() - score(real).mean() + 10.0 * penalty


def data(key, n=16):
    k1, k2, k3 = jax.random.split(key, 3)
    real = 2.0 + 0.5 * jax.random.normal(k1, (n, 2))
    return real, jax.random.normal(k2, (n, 2)), jax.random.uniform(k3, (n, 1))


def start(key, width=16):
    k1, k2 = jax.random.split(key)
    w1, w2 = jax.random.normal(k1, (2, width)) / 2, jax.random.normal(k2, (width, 1)) / 4
    return {"w1": w1, "b1": jnp.zeros(width), "w2": w2}


def main(steps=15):
    p = start(jax.random.key(0))
    losses = []
    for i in range(steps):
        tensors = {name: tj.tensor(value, requires_grad=True) for name, value in p.items()}
        with tj.Tape():
            loss = critic_loss(tensors, *data(jax.random.key(i)))
            grads = tj.backward(loss, wrt=list(tensors.values()))
        p = {name: p[name] - 0.02 * grads[tensor] for name, tensor in tensors.items()}
        losses.append(loss.item())
    print(f"critic loss, first and last step: {losses[0]:.3f} {losses[-1]:.3f}")
    return losses


if __name__ == "__main__":
    main()
