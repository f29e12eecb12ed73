"""The benchmarks measure what they say: the same gradients as jax, at sizes where that takes no time."""

import copy

import numpy as np
import pytest

from benchmarks import bars, cost, report, sampling, ssm
from benchmarks.agreement import Disagreement, check
from benchmarks.contestants import FAMILY, PLACES, load
from benchmarks.workers import Desk
from benchmarks.workloads import all_workloads, tiny_workloads

WORKLOADS = tiny_workloads()


@pytest.fixture(scope="module")
def ours():
    return {name: load(name) for name in ("tapejax", "jax.jit")}


def gradients(contestant, workload, calls=1):
    return contestant.canonical(workload, sampling.warm(contestant.prepare(workload).gradient, calls))


QUICK = {"add", "getitem", "matmul", "mlp_2x4", "chain"}


@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in QUICK else [pytest.mark.slow]) for n in WORKLOADS])
def test_gradients_are_those_of_jax(name, ours):
    workload = WORKLOADS[name]
    expected = gradients(ours["jax.jit"], workload)
    check(name, gradients(ours["tapejax"], workload, calls=3), expected)  # the third time by the fused program
    assert all(gradient.any() for gradient in expected[1])


@pytest.mark.parametrize("name", ["matmul", "lstm"])
def test_the_compiled_step_too(name, ours):
    workload = WORKLOADS[name]
    check(name, gradients(load("tapejax in jax.jit"), workload), gradients(ours["jax.jit"], workload))


def test_a_wrong_gradient_is_an_error():
    right = (np.float32(1.0), [np.ones(3, "f")])
    check("right", right, right)
    for wrong in (np.array([1.0, 1.0, 1.01]), np.array([1.0, np.nan, 1.0]), np.ones(2)):
        with pytest.raises(Disagreement, match="somebody"):
            check("somebody", (right[0], [wrong]), right)
    with pytest.raises(Disagreement, match="result"):
        check("somebody", (np.float32(2.0), right[1]), right)


def test_the_layout_that_a_contestant_prefers_is_undone():
    workload = WORKLOADS["conv_net"]
    contestant = load("jax.jit")
    contestant.layout = "NCHW"
    params, data = contestant.arrays(workload)
    assert params[0].shape == (2, 1, 3, 3)
    assert data[0].shape == (2, 1, 12, 12)
    _, back = contestant.canonical(workload, (0.0, params))
    assert all(np.array_equal(one, other) for one, other in zip(back, workload.params, strict=True))


def test_sizes_are_those_promised():
    full = all_workloads()
    assert len(full["mlp_6x32"].params) == 12
    assert full["mlp_6x32"].data[0].shape == (32, 32)
    assert full["mlp_6x512"].params[0].shape == (512, 512)
    assert full["transformer"].data[0].shape == (128, 256)
    assert [full[name].loop for name in ("lstm", "ssm", "chain", "fan_in")] == [64, 1024, 1000, 1000]
    assert set(FAMILY) == set(PLACES)


def test_a_worker_makes_ready_and_samples():
    desk = Desk(tiny=True)
    answer = desk.prepare("bare jitted calls", "add")
    assert answer["numbers"] is None  # forward only
    wall, cores = desk.sample("bare jitted calls", "add", "forward", 2)
    assert wall > 0
    assert cores >= 0


def test_chains_are_measured_and_checked():
    desk = Desk()
    assert set(desk.scale(150)) == {f"{way}, gc {gc}" for way in ("forward", "backward") for gc in ("off", "on")}
    assert desk.scale_bytes(150)["traced"] > 0


# --- the report ----------------------------------------------------------------------------------------

TIMES = {"seconds": [1.0, 2.0, 4.0], "cores": [1.0, 1.0, 1.0]}
HALF = {"seconds": [0.5, 1.0, 2.0], "cores": [1.0, 1.0, 1.0]}
RESULTS = {
    "rounds": 3,
    "command": "python -m benchmarks",
    "environment": {"python": "3"},
    "skipped": {"MyGrad": "not installed"},
    "workloads": {
        "mlp_6x32": {
            "forward": {"tapejax": TIMES, "bare jitted calls": TIMES},
            "gradient": {"tapejax": HALF, "torch": TIMES, "HIPS autograd": TIMES},
            "compiled": {"tapejax in jax.jit": TIMES, "jax.jit": HALF},
            "absent": {"tinygrad": "too long"},
            "compilation": {
                "tapejax in jax.jit": {"warm": [1.0], "cold": [2.0], "compile": [1.0], "temp_bytes": 64},
                "jax.jit": {"warm": [2.0], "cold": [1.0], "compile": [1.0], "temp_bytes": 64},
            },
        }
    },
    "scale": {},
}


def test_bars_say_what_is_met_what_is_not_and_what_was_not_measured():
    rows = {row.measure: row for row in bars.rows(RESULTS)}
    assert rows["eager forward+backward / torch, mlp_6x32"].value.median == 0.5  # by round, whatever the round was like
    assert rows["eager forward+backward / torch, mlp_6x32"].met
    assert rows["eager forward+backward / HIPS autograd, mlp_6x32"].verdict == "NOT met"
    assert rows["eager forward+backward / MyGrad, mlp_6x32"].note == "MyGrad: not installed"
    assert rows["eager forward+backward / torch, conv_net"].met is None
    assert rows["compiled run time / jax.jit, each workload"].value.median == 2.0
    assert rows["XLA temp bytes / jax.jit, each workload"].met
    assert rows["trace + lower / jax.jit, what is called known, each workload"].met
    assert not rows["trace + lower / jax.jit, caches empty, each workload"].met


def test_the_bar_of_scale_needs_a_million():
    results = copy.deepcopy(RESULTS)
    row = {f"{way}, gc {gc}": [1.0, 1.0] for way in ("forward", "backward") for gc in ("off", "on")}
    results["scale"] = {"1000": row | {"bytes": {"traced": 1.0, "resident": 1.0}}}
    assert [one.met for one in bars.scale(results)] == [None, None, True, True]
    longer = {key: [1.3, 1.3] for key in row}
    results["scale"]["1000000"] = longer | {"bytes": {"traced": 601.0, "resident": 1.0}}
    assert [one.met for one in bars.scale(results)] == [False, False, False, True]


def test_the_report_goes_between_the_markers_of_a_page():
    page = f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n"
    filled = report.fill(page, report.text(RESULTS))
    assert filled.startswith("before")
    assert filled.endswith("after\n")
    assert "old" not in filled
    assert "| tapejax " in filled
    assert "without tinygrad: too long" in filled
    assert report.fill(filled, "new") == report.fill(page, "new")
    with pytest.raises(ValueError, match="figures"):
        report.fill("no markers", "new")


def test_the_curve_of_the_state_space_example_is_a_picture():
    from xml.etree import ElementTree

    picture = ElementTree.fromstring(ssm.curve([(2.0 - i / 20, i / 40) for i in range(40)], window=10))
    loss, right = (line.get("points").split() for line in picture.iter("{http://www.w3.org/2000/svg}polyline"))
    height = lambda point: float(point.split(",")[1])
    assert len(loss) == len(right) == 4
    assert height(loss[0]) < height(loss[-1])  # downwards in an SVG is up
    assert height(right[0]) > height(right[-1])


def test_the_cost_on_many_devices_is_the_arithmetic_that_it_says():
    machine = cost.Machine(flops=1e12, reached=0.5, link=1e9)
    model = cost.Model("tiny", layers=2, width=10, heads=1, length=100, sequences=64, at_once=4, actions=5)
    measured = cost.Measured(1e-4, 1e-5, 2e-5, 2e-5, linear=40.0, square=8.0)
    assert model.parameters == 2400
    arithmetic, collectives = cost.seconds(8, machine, model)
    assert arithmetic == pytest.approx(800 * (6 * 2400 + 12 * 2 * 100 * 10) / 5e11)
    assert collectives == pytest.approx(2 * 6 * 2400 * 7 / 8 / 1e9)  # eight sequences, four at a time
    assert cost.python(8, measured, model)["eager, op by op"] == pytest.approx(2 * 10 * 1e-4)
    by_way = {(row["devices"], row["way"]): row for row in cost.times(measured, machine, model)}
    assert by_way[4096, "jitted tape"]["added"] == by_way[4096, "jax.jit"]["added"]
    assert by_way[4096, "eager, op by op"]["added"] > by_way[8, "eager, op by op"]["added"] >= 0
    kept = {(row["devices"], row["parameters"], row["policy"]): row for row in cost.memory(measured, model)}
    one = kept[256, "fully sharded", "everything kept"]
    assert one["kept"] == 2 * (40 * 1000 + 8 * 100**2) / 2  # one sequence of 1,000 numbers, two layers, in bfloat16
    assert one["state"] == 16 * 2400 / 256
    assert kept[256, "replicated", "layers checkpointed"]["kept"] < one["kept"]
