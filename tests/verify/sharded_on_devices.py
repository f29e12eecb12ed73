"""verify_sharded on 4 virtual devices. Run by test_sharded.py: jax counts devices when it starts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import tapejax as tj

MESH = jax.make_mesh((4,), ("d",), axis_types=(AxisType.Auto,))
ROWS, ALL = NamedSharding(MESH, P("d")), NamedSharding(MESH, P())
DRAWN = np.random.default_rng(0)
X, W = DRAWN.normal(size=(8, 3)).astype("f"), DRAWN.normal(size=(3,)).astype("f")


def loss(w, x):
    return jnp.mean(jnp.tanh(x @ w) ** 2)


def mapped(body, **options):
    def function(w, x):
        return jax.shard_map(body, in_specs=(P(), P("d")), out_specs=P(), check_vma=False, **options)(w, x)

    return function


def whole(w, x):
    return lax.pmean(loss(w, x), "d")


def part(w, x):
    return loss(w, x)  # forgot pmean


@jax.custom_vjp
def summed(x):
    return lax.psum(x, "d")


summed.defvjp(lambda x: (lax.psum(x, "d"), None), lambda _, ct: (ct * 0.5,))


def main():
    check = lambda f, **options: tj.verify_sharded(f, W, X, shardings=(ALL, ROWS), **options)
    report = check(loss)
    assert report.ok, report
    assert [row.input for row in report.rows] == ["the value", "w", "x"]
    assert report.devices == 4

    assert check(mapped(whole)).ok
    forgotten = check(mapped(part))  # no reference: a second run, on a mesh of one device
    assert not forgotten.ok
    assert forgotten.first_wrong.input == "the value"
    assert "on 4 devices" in str(forgotten)

    assert check(mapped(whole, mesh=MESH), reference=loss).ok
    assert not check(mapped(part, mesh=MESH), reference=loss).ok
    with pytest.raises(tj.errors.ArgumentError, match="mesh of its own"):
        check(mapped(whole, mesh=MESH))

    only_back = check(
        mapped(lambda w, x: summed(jnp.sum(jnp.tanh(x @ w)))), reference=lambda w, x: jnp.sum(jnp.tanh(x @ w))
    )
    assert [row.input for row in only_back.wrong] == ["w", "x"], only_back
    assert only_back.to_json()["ok"] is False

    explicit = jax.make_mesh((4,), ("d",), axis_types=(AxisType.Explicit,))
    assert tj.verify_sharded(lambda x: jnp.sin(x) * x, X, shardings=NamedSharding(explicit, P("d"))).ok
    with pytest.raises(tj.errors.ArgumentError, match="NamedSharding"):
        tj.verify_sharded(loss, W, X, shardings=P("d"))
    print("ok")


if __name__ == "__main__":
    main()
