"""The far end of `python -m benchmarks.against`: run as a file, with the tapejax that PYTHONPATH names.

It imports nothing of this package, since the checkout may have another one of the same name, or none.
"""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Callable
from time import perf_counter, process_time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import tapejax as tj
import tapejax.numpy as tnp

try:
    from tapejax.plan.executables import shelf
except ImportError:
    shelf = None  # a version from before there was one

SHORTEST = 20e-3  # seconds of a sample
CALM_CALLS, CALM_SECONDS = 3000, 4.0  # without anything being compiled: nothing is to come
LAYERS, WIDTH, BATCH = 6, 32, 32


def random(*shape: int, seed: int = 0) -> Any:
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape) * shape[-1] ** -0.5, jnp.float32)


def mlp(n: Any, params: Any, h: Any) -> Any:
    for w, b in zip(params[::2], params[1::2]):
        h = n.tanh(h @ w + b)
    return (h * h).sum()


def measures() -> dict[str, Callable[[], Any]]:
    arrays = [random(*shape, seed=i) for i, shape in enumerate([(WIDTH, WIDTH), (WIDTH,)] * LAYERS)]
    params = [tj.tensor(array, requires_grad=True) for array in arrays]
    array = random(BATCH, WIDTH, seed=99)
    data = tj.tensor(array)
    x, y = (tj.tensor(random(8, 8, seed=i), requires_grad=True) for i in range(2))

    def deferring() -> None:
        with tj.Tape():  # is dropped: nobody asks for the loss, so no program runs
            mlp(tnp, params, data)

    def forward() -> None:
        mlp(tnp, params, data).block_until_ready()

    def step(*, wrt: bool) -> None:
        loss = mlp(tnp, params, data)
        grads = tj.backward(loss, wrt=params) if wrt else tj.backward(loss)
        jax.block_until_ready((loss.value, [grads[param] for param in params]))

    def one_op(op: Callable[[], Any], of: list[Any], *, wrt: bool = True) -> Callable[[], None]:
        def run() -> None:
            out = op()
            grads = tj.backward(out, wrt=of) if wrt else tj.backward(out)
            jax.block_until_ready((out.value, [grads[one] for one in of]))

        return run

    def lowered_by_jax() -> None:
        fresh = tj.value_and_grad(lambda params, data: mlp(tnp, params, data))
        jax.jit(fresh).lower(arrays, array)

    def traced_by_tape() -> None:
        fresh = tj.jit(lambda params, data: mlp(tnp, params, data))
        with tj.Tape():  # traced; nobody asks for the loss, so nothing is compiled
            fresh(params, data)

    return {
        "deferring only, mlp_6x32": deferring,
        "forward, mlp_6x32": forward,
        "forward+backward with wrt, mlp_6x32": lambda: step(wrt=True),
        "forward+backward without wrt, mlp_6x32": lambda: step(wrt=False),
        "one op forward+backward, add": one_op(lambda: x + y, [x, y]),
        "one op forward+backward, matmul": one_op(lambda: x @ y, [x, y]),
        "one op forward+backward, tanh": one_op(lambda: tnp.tanh(x), [x]),
        "one op forward+backward without wrt, tanh": one_op(lambda: tnp.tanh(x), [x], wrt=False),
        "trace+lower, jax.jit(tapejax.value_and_grad), mlp_6x32": lowered_by_jax,
        "tracing a new tapejax.jit function, mlp_6x32": traced_by_tape,
    }


def prepare(call: Callable[[], Any], patience: float) -> dict[str, Any]:
    """Warm up until nothing is compiled for it any more; then how many calls make a sample."""
    begin = calm_since = perf_counter()
    calm, is_settled = 0, True
    while calm < CALM_CALLS and (calm < 5 or perf_counter() - calm_since < CALM_SECONDS):
        if unsettled(call):
            calm, calm_since = 0, perf_counter()
        else:
            calm += 1
        if perf_counter() - begin > patience:
            is_settled = False
            break
    took = min(_timed(call, 3, perf_counter) for _ in range(3))
    return {"count": max(1, round(SHORTEST / took)), "settled": is_settled}


def unsettled(call: Callable[[], Any]) -> bool:
    """Whether a call compiled a program, or ran by one that will be compiled again; old versions cannot say."""
    if shelf is None:
        call()
        return False
    before = shelf.there()
    last, known = max((one.last_use for one in before), default=0), set(map(id, before))
    call()
    return any(id(one) not in known or (is_quick(one) and one.last_use > last) for one in shelf.there())


def is_quick(one: Any) -> bool:
    return getattr(one, "is_quick", False)


def _timed(call: Callable[[], Any], count: int, clock: Callable[[], float]) -> float:
    loop = range(count)
    gc.collect()
    gc.disable()
    try:
        start = clock()
        for _ in loop:
            call()
        return (clock() - start) / count
    finally:
        gc.enable()


def main() -> None:
    calls = measures()
    clocks = {"processor": process_time, "wall": perf_counter}
    for line in sys.stdin:
        method, *arguments = json.loads(line)
        if method == "where":
            answer = tj.__file__
        elif method == "names":
            answer = list(calls)
        elif method == "prepare":
            answer = prepare(calls[arguments[0]], arguments[1])
            gc.freeze()  # so that collecting before each sample is quick
        else:
            name, count, clock = arguments
            calls[name]()
            answer = _timed(calls[name], count, clocks[clock])
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
