"""A second opinion on derivatives written by hand: which of three layer norms has a wrong one, and where?

Run: python examples/08_verify_custom_rule.py
"""

import jax
import jax.numpy as jnp

import tapejax as tj


def normalised(x):
    centred = x - x.mean(-1, keepdims=True)
    sigma = jnp.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    return centred / sigma, sigma


def exact(kept, ct):
    xhat, sigma, scale = kept
    g = scale * ct
    dx = (g - g.mean(-1, keepdims=True) - xhat * (g * xhat).mean(-1, keepdims=True)) / sigma
    return dx, (ct * xhat).sum(0)


def shortcut(kept, ct):
    """Found in the wild: as if the standard deviation did not depend on x."""
    xhat, sigma, scale = kept
    return scale / sigma * (ct - ct.mean(-1, keepdims=True)), (ct * xhat).sum(0)


def forgotten_sum(kept, ct):
    """The scale is shared by all rows, but gets the gradient of the first."""
    xhat, _, _ = kept
    return exact(kept, ct)[0], (ct * xhat)[0]


def layer_norm(backward):
    """A layer norm with this derivative; its value is always right."""

    @jax.custom_vjp
    def norm(x, scale):
        return normalised(x)[0] * scale

    def forward(x, scale):
        xhat, sigma = normalised(x)
        return xhat * scale, (xhat, sigma, scale)

    norm.defvjp(forward, backward)
    return norm


def main():
    x, scale = jax.random.normal(jax.random.key(0), (4, 6)), jnp.linspace(0.5, 1.5, 6)
    reports = {}
    for backward in (exact, shortcut, forgotten_sum):
        report = reports[backward.__name__] = tj.verify_custom_rule(layer_norm(backward), x, scale)
        print(f"{backward.__name__}: {'right' if report.ok else 'WRONG'}")
        if not report.ok:
            worst = report.first_wrong.worst
            print(f"  {worst.input} at {list(worst.index)}: got {worst.got:.4f}, expected {worst.expected:.4f}")
    return reports


if __name__ == "__main__":
    main()
