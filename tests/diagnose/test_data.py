"""A tape as data: parts, files, replay, and where two runs part."""

import json
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tapejax as tj
import tapejax.numpy as tnp
from tapejax import cli
from tapejax.diagnose import TapeData
from tapejax.errors import ArgumentError, IndexingError

X = jnp.array([0.5, 2.0, -1.0])
W = jnp.array([1.0, 3.0, 0.25])


def loss(x, w):
    with tj.region("hidden"):
        h = tnp.sin(x * w)
    return (h * h).sum()


def by_jax(x, w):
    return jnp.sum(jnp.sin(x * w) ** 2)


@pytest.fixture(scope="module")
def run():
    return TapeData.record(loss, X, W)


def test_what_ran_with_all_numbers(run):
    assert [entry.op for entry in run] == ["multiply", "sin", "multiply", "sum"]
    assert run.leaves == {"x": 0, "w": 1}
    assert run[1].line.rpartition(":")[0] == __file__
    np.testing.assert_allclose(run.values[run[1].outputs[0]], np.sin(X * W), rtol=1e-6)
    expected = jax.grad(by_jax, (0, 1))(X, W)
    np.testing.assert_allclose(run.cotangents[0], expected[0], rtol=1e-5)
    np.testing.assert_allclose(run.cotangents[1], expected[1], rtol=1e-5)


def test_of_a_tape_that_stays_as_it_is():
    x = tj.tensor(X, requires_grad=True)
    with tj.Tape() as tape:
        y = loss(x, W)
    data = TapeData.of(tape, y, x=x)
    assert len(data) == len(tape) == 4
    np.testing.assert_allclose(data.cotangents[data.leaves["x"]], jax.grad(by_jax)(X, W), rtol=1e-5)
    np.testing.assert_allclose(tape.backward(y)[x], jax.grad(by_jax)(X, W), rtol=1e-5)


def test_parts(run):
    assert [entry.op for entry in run[1:3]] == ["sin", "multiply"]
    assert len(run.filter(op="multiply")) == 2
    assert [entry.op for entry in run.regions["hidden"]] == ["multiply", "sin"]
    assert [entry.op for entry in run.filter(where=lambda entry: len(entry.inputs) == 1)] == ["sin", "sum"]
    assert len(run.filter(line=run[3].line.rpartition("/")[2])) == 2
    assert list(run[1:3].leaves.values()) == list(run[1].inputs)
    with pytest.raises(IndexingError):
        run[9]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_file_holds_it_all_again(tmp_path, dtype):
    run = TapeData.record(loss, X.astype(dtype), W.astype(dtype))
    loaded = TapeData.load(run.save(tmp_path / "run"))
    assert (loaded.entries, loaded.leaves, loaded.roots) == (run.entries, dict(run.leaves), run.roots)
    assert run.diff(loaded, rtol=0).ok
    assert {slot: array.dtype for slot, array in loaded.values.items()} == {s: a.dtype for s, a in run.values.items()}
    with pytest.raises(ArgumentError, match="without its program"):
        loaded.replay(x=X.astype(dtype))


def test_loading_runs_no_code(tmp_path, run):
    class Trap:
        def __reduce__(self):
            return print, ("run",)

    path = run.save(tmp_path / "run")
    text = json.loads(path.read_text())
    np.savez(path.with_suffix(".npz"), **{name: np.array([Trap()], object) for name in text["arrays"]})
    with pytest.raises(ArgumentError, match="is no saved tape"):
        TapeData.load(path)
    path.with_suffix(".npz").write_bytes(pickle.dumps(Trap()))
    with pytest.raises(ArgumentError, match="is no saved tape"):
        TapeData.load(path)
    path.write_text("__import__('os')")
    with pytest.raises(ArgumentError, match="is no saved tape"):
        TapeData.load(path)
    with pytest.raises(ArgumentError, match="is no saved tape"):
        TapeData.load(tmp_path / "nothing")


def test_replay_with_other_numbers(run):
    again = run.replay(x=2 * X)
    np.testing.assert_allclose(again.values[run.roots[0]], by_jax(2 * X, W), rtol=1e-6)
    np.testing.assert_allclose(again.cotangents[1], jax.grad(by_jax, 1)(2 * X, W), rtol=1e-5)
    np.testing.assert_allclose(run.values[0], X)
    with pytest.raises(ArgumentError, match="no leaf is called z"):
        run.replay(z=X)
    with pytest.raises(ArgumentError, match="x is float32"):
        run.replay(x=jnp.ones(2))


def test_replay_from_a_file(tmp_path, run):
    pytest.importorskip("flatbuffers")
    loaded = TapeData.load(run.save(tmp_path / "run", program=True))
    again = loaded.replay(w=W + 1)
    np.testing.assert_allclose(again.values[run.roots[0]], by_jax(X, W + 1), rtol=1e-6)


def test_where_two_runs_part_forward_and_back(run):
    assert run.diff(run).ok
    assert str(run.diff(run)) == "the runs are alike, forward and back"
    other = run.replay(x=X.at[1].set(2.5))
    found = run.diff(other)
    assert (found.forward.index, found.forward.element) == (0, (1,))
    assert (found.backward.index, found.backward.what, found.backward.element) == (1, "cotangent", (1,))
    assert "multiply" in str(found)
    assert found.to_json()["ok"] is False


def test_a_way_back_that_differs_only_there():
    def with_slope(slope):
        @tj.custom_op
        def twice(x):
            return 2.0 * x

        @twice.defbackward
        def pull(ct, out, x):
            return (slope * ct,)

        return lambda x: twice(tnp.sin(x)).sum()

    found = TapeData.record(with_slope(2.0), X).diff(TapeData.record(with_slope(3.0), X))
    assert found.forward is None
    assert (found.backward.index, found.backward.number_a, found.backward.number_b) == (0, 2.0, 3.0)


def test_another_program():
    a = TapeData.record(lambda x: tnp.sin(x).sum(), X)
    b = TapeData.record(lambda x: tnp.cos(x).sum(), X)
    c = TapeData.record(lambda x: tnp.sin(x).sum() * 2, X)
    assert (a.diff(b).forward.index, a.diff(b).forward.what) == (0, "program")
    assert (a.diff(c).forward.index, a.diff(c).forward.a) == (2, "")


def test_steps_of_a_loop():
    def rolled(x):
        return jax.lax.scan(lambda c, _: (jnp.sin(c), None), x, None, length=3)[0].sum()

    run = TapeData.record(rolled, X, detail="primitives")
    assert [entry.steps for entry in run.filter(op="sin")] == [(("scan", i),) for i in range(3)]


def test_the_command(tmp_path, capsys, monkeypatch):
    (tmp_path / "model.py").write_text(
        "import jax.numpy as jnp, tapejax.numpy as tnp\n"
        "def loss(x):\n    return tnp.sin(x * x).sum()\n"
        "def inputs():\n    return (jnp.array([1.0, 2.0]),)\n"
    )
    monkeypatch.chdir(tmp_path)
    assert cli.main(["show", "model.py:loss", "--save", "a"]) == 0
    assert cli.main(["show", "model.py:loss", "--args", "jnp.array([1.0, 2.5])", "--save", "b"]) == 0
    assert cli.main(["diff", "a.json", "b.json"]) == 1
    assert cli.main(["diff", "a", "a"]) == 0
    assert cli.main(["diff", "a", "nothing"]) == 2
    said = capsys.readouterr().out
    assert "forward action 0: %1 = multiply %0 %0" in said
    assert "alike" in said
