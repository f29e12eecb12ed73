"""What profilers and XLA dumps show: the user's lines and named scopes, forward and backward apart."""

import gzip
import inspect
import json

import jax
import jax.numpy as jnp
import pytest

import tapejax as tj
import tapejax.numpy as tnp
from tapejax.ground import compat

W, X = jnp.ones((4, 4)), jnp.ones((4, 4))


def over_tensors(w):
    with jax.named_scope("layer"):
        h = tnp.tanh(X @ w)
    return (h * h).sum()


def over_arrays(w):
    with jax.named_scope("layer"):
        h = jnp.tanh(X @ w)
    return (h * h).sum()


def by_hand(w):
    leaf = tj.tensor(w, requires_grad=True)
    loss = over_tensors(leaf)
    return tj.backward(loss)[leaf]


def lifted(w):
    return tj.grad(tj.lift(over_arrays))(w)


def equations(function):
    """(primitive, line within the model, names) of a traced function's equations."""
    inner, _ = compat.jaxpr_parts(jax.make_jaxpr(function)(W))
    start = {f.__name__: inspect.getsourcelines(f)[1] for f in (over_tensors, over_arrays)}
    for eqn in inner.eqns:
        line = compat.source_line(eqn.source_info)  # file:line:column (function)
        name = line.rpartition("(")[2].rstrip(")")
        at = int(line.split(".py:")[1].split(":")[0]) - start[name] if name in start else None
        yield eqn.primitive.name, at, str(eqn.source_info.name_stack)


@pytest.mark.parametrize("function", [tj.grad(over_tensors), tj.grad(over_arrays), by_hand, lifted])
def test_lines_and_scopes_of_the_model_survive(function):
    for _ in range(2):  # the second time plans are there already
        found = list(equations(function))
        products = [(at, names) for name, at, names in found if name == "dot_general"]
        (forward_at, forward), (backward_at, backward) = products[0], products[-1]
        assert forward_at == backward_at == 2
        assert "layer" in forward
        assert "backward" not in forward
        assert "layer" in backward
        assert backward.startswith("backward(")
        tanh_at, tanh = next((at, names) for name, at, names in found if name == "tanh")
        assert tanh_at == 2
        assert "layer" in tanh
        assert next(at for name, at, _ in found if name == "reduce_sum") == 3


def test_one_op_at_two_lines_has_both():
    def twice(w):
        with jax.named_scope("first"):
            h = tnp.tanh(w)
        with jax.named_scope("second"):
            return tnp.tanh(h).sum()

    inner, _ = compat.jaxpr_parts(jax.make_jaxpr(tj.grad(twice))(W))
    tanhs = [eqn for eqn in inner.eqns if eqn.primitive.name == "tanh"]
    assert [str(eqn.source_info.name_stack) for eqn in tanhs] == ["first", "second"]
    lines = [compat.source_line(eqn.source_info).split(":")[1] for eqn in tanhs]
    assert int(lines[1]) - int(lines[0]) == 2
    products = {str(eqn.source_info.name_stack).split("/")[0] for eqn in inner.eqns if eqn.primitive.name == "mul"}
    assert products == {"backward(first)", "backward(second)"}


def test_a_scope_around_both_directions_is_named_once():
    def step(w):
        with jax.named_scope("step"):
            return tj.grad(over_tensors)(w)

    names = [names for _, _, names in equations(step)]
    assert "step/layer" in names
    assert any(name.startswith("step/backward(layer)") for name in names)


def test_an_error_inside_comes_out_as_it_is():
    inner, _ = compat.jaxpr_parts(jax.make_jaxpr(jnp.tanh)(W))
    with pytest.raises(KeyError) as caught, compat.made_at(inner.eqns[0].source_info):
        raise KeyError("mine")
    assert caught.value.__cause__ is None


def test_compiled_text_has_the_names():
    text = jax.jit(tj.grad(over_tensors)).lower(W).as_text(debug_info=True)
    assert '/layer/tanh"' in text
    assert "/backward(layer)/" in text
    assert "test_names.py" in text


def test_fused_programs_are_named_by_what_they_do(tmp_path):
    tj.clear_plans()
    w = tj.tensor(W * 1.5, requires_grad=True)
    with jax.profiler.trace(str(tmp_path), create_perfetto_trace=True):
        tj.backward(over_tensors(w), wrt=w)[w].block_until_ready()
    (trace,) = tmp_path.rglob("perfetto_trace.json.gz")
    events = json.loads(gzip.decompress(trace.read_bytes()))
    events = events["traceEvents"] if isinstance(events, dict) else events
    names = " ".join({str(event.get("name")) for event in events})
    assert "forward_and_backward_of_matmul_tanh_multiply_sum" in names
    (program,) = [one for one in tj.programs() if "forward_and_backward" in str(one)]
    assert "matmul" in str(program)
