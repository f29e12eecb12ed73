"""The benchmarks measure what they say: the same gradients as jax, at sizes where that takes no time."""

import copy
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import tapejax as tj
from benchmarks import bars, cost, first_contact, peak, report, sampling, scale, ssm
from benchmarks.__main__ import OTHERS, parse
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


@pytest.mark.slow
def test_the_twin_in_torch_is_the_same_model(ours):
    pytest.importorskip("torch")
    workload = WORKLOADS["character_gpt"]
    check("torch", gradients(load("torch"), workload), gradients(ours["jax.jit"], workload))


def test_a_workload_that_is_not_written_for_a_contestant_is_left_out(ours):
    workload = WORKLOADS["character_gpt"]
    assert ours["tapejax"].why_not(workload) is None
    assert load("bare jitted calls").why_not(workload)


@pytest.mark.parametrize("name", ["mlp_2x4", "conv_net"])
def test_without_wrt_too(name, ours):
    workload = WORKLOADS[name]
    found = gradients(load("tapejax, no wrt"), workload, calls=3)
    check(name, found, gradients(ours["jax.jit"], workload))


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


@pytest.mark.slow
def test_a_step_is_measured_when_it_is_compiled_well():
    """A small step is compiled quickly first. It comes to rest, and not before its program is replaced."""
    desk = Desk(tiny=True)
    contestant = desk._loaded("tapejax")
    step = contestant.prepare(WORKLOADS["mlp_2x4"]).gradient
    step()
    assert contestant.unsettled(step)
    assert not sampling.settle(step, contestant.unsettled, patience=0.0)
    assert sampling.settle(step, contestant.unsettled)
    assert not contestant.unsettled(step)


@pytest.mark.slow
def test_chains_are_measured_and_checked():
    desk = Desk()
    assert set(scale.WAYS) == set(bars.WAYS)
    tj.clear_plans()
    # A few visits are not enough for well-compiled programs, and that is not kept quiet.
    assert not scale.chain(151, "explicit tape", patience=0.0)["settled"]
    for way in scale.WAYS:
        found = scale.chain(150, way, patience=0.0)
        assert found["forward"] > 0
        assert found["backward"] > 0
        assert found["asked"] > 0
    assert desk.scale_bytes(150)["traced"] > 0


STEP = """
import numpy as np
from benchmarks import peak

def step():
    one = np.ones(4 << 20, np.uint8)
    del one
    return np.ones(3 << 20, np.uint8)

try:
    print(*peak.growth(step, 3))
except peak.NotHere as why:
    print("not here:", why)
"""


def test_the_highest_point_of_a_step_is_what_it_holds_at_once():
    command, settings = [sys.executable, "-c", STEP], os.environ | peak.SETTINGS
    said = subprocess.run(command, env=settings, capture_output=True, text=True, timeout=60, check=True).stdout
    if said.startswith("not here"):
        pytest.skip(said)
    found = [int(bytes) for bytes in said.split()]
    assert len(found) == 3
    assert all(3 << 20 < bytes < 6 << 20 for bytes in found), found  # never both


@pytest.mark.slow
def test_the_first_steps_are_measured_in_a_process_of_their_own():
    found = first_contact.measure("tapejax", [32, 32])
    assert len(found["processor"]) == len(found["wall"]) == 2
    assert found["in_all"] > sum(found["processor"])
    assert found["quick"]  # two visits are few


# --- the report ----------------------------------------------------------------------------------------

TIMES = {"seconds": [1.0, 2.0, 4.0], "cores": [1.0, 1.0, 1.0]}
HALF = {"seconds": [0.5, 1.0, 2.0], "cores": [1.0, 1.0, 1.0]}
RESULTS: dict[str, Any] = {
    "rounds": 3,
    "settings": "as it comes",
    "command": "python -m benchmarks",
    "environment": {"python": "3"},
    "skipped": {"MyGrad": "not installed"},
    "workloads": {
        "mlp_6x32": {
            "forward": {"tapejax": TIMES, "bare jitted calls": TIMES},
            "gradient": {
                "tapejax": HALF,
                "tapejax, no wrt": TIMES,
                "jax.jit": HALF,
                "torch": TIMES,
                "HIPS autograd": TIMES,
            },
            "compiled": {"tapejax in jax.jit": TIMES, "jax.jit": HALF},
            "absent": {"tinygrad": "too long"},
            "unsettled": ["tapejax, no wrt, gradient"],
            "compilation": {
                "tapejax in jax.jit": {"warm": [1.0], "cold": [2.0], "compile": [1.0], "temp_bytes": 0},
                "jax.jit": {"warm": [2.0], "cold": [1.0], "compile": [1.0], "temp_bytes": 128},
            },
        }
    },
    "scale": {},
    "peak": {},
}


def rows_of(results):
    found = bars.rows(results)
    assert len({row.measure for row in found}) == len(found)
    return {row.measure: row for row in found}


def test_bars_say_what_is_met_what_is_not_and_what_was_not_measured():
    rows = rows_of(RESULTS)
    assert rows["eager forward+backward / torch, mlp_6x32"].value.median == 0.5  # by round, whatever the round was like
    assert rows["eager forward+backward / torch, mlp_6x32"].met
    assert rows["eager forward+backward / HIPS autograd, mlp_6x32"].verdict == "NOT met"
    assert rows["eager forward+backward / MyGrad, mlp_6x32"].note == "MyGrad: not installed"
    assert rows["eager forward+backward / torch, conv_net"].met is None
    assert rows["eager forward+backward with wrt / jax.jit, mlp_6x32"].met
    without = rows["eager forward+backward without wrt / jax.jit, mlp_6x32"]
    assert without.verdict == "NOT met"
    assert "still compiling" in without.note
    assert rows["compiled run time / jax.jit, geometric mean"].value.median == 2.0
    assert rows["XLA temp bytes / jax.jit, geometric mean"].value.median == 0.5  # no buffer counts as the least one
    assert rows["trace + lower / jax.jit, what is called known, geometric mean"].met
    assert not rows["trace + lower / jax.jit, caches empty, geometric mean"].met
    single = rows["eager forward+backward / torch, single ops 8x8, geometric mean"]
    assert single.note == f"{', '.join(bars.SINGLE)}: tapejax: left out of this run"


def test_single_ops_are_taken_together():
    results = copy.deepcopy(RESULTS)
    for name in bars.SINGLE:
        results["workloads"][name] = {"gradient": {"tapejax": HALF if name == "add" else TIMES, "torch": TIMES}}
    row = rows_of(results)["eager forward+backward / torch, single ops 8x8, geometric mean"]
    assert row.value.median == pytest.approx(0.5 ** (1 / 6))
    assert row.met


def test_the_bar_of_scale_is_for_the_default_backward_on_both_tapes():
    results = copy.deepcopy(RESULTS)
    assert [row.met for row in bars.scale(results)] == [None] * 6
    times = lambda backward, asked=1.0: {
        "forward": [1.0] * 2,
        "backward": [backward] * 2,
        "asked": [asked] * 2,
        "settled": True,
    }
    results["scale"] = {"1000": {tape: times(1.0) for tape in bars.TAPES}}
    results["scale"]["1000000"] = {"explicit tape": times(1.0), "ambient tape": times(1.3, 3.0)}
    # The backward by itself counts too, and so does what is put off until somebody asks.
    assert [row.met for row in bars.scale(results)] == [True, True, True, True, False, False]


def test_the_bars_of_the_first_steps():
    one = lambda first, rest, n, quick=False: {
        "processor": [first, *[rest] * (n - 1)], "wall": [first, *[rest] * (n - 2), 4 * rest], "in_all": 10.0, "quick": quick,
    }  # fmt: skip
    many = len(first_contact.LENGTHS)
    assert len(set(first_contact.LENGTHS)) == 20
    assert many == 30
    found = {
        "same": {"tapejax": [one(1.0, 0.1, 9, quick=True)], "jax.jit": [one(2.0, 0.1, 9)]},
        "cache": {
            "first": [one(2.0, 0.0, 2)],
            "second": [one(0.5, 0.0, 2)],
            "trained": [one(1.0, 0.1, 31)],
            "after": [one(0.05, 0.05, 20)],
        },
        "lengths": {"tapejax": [one(0.7, 0.7, many)], "jax.jit": [one(1.0, 1.0, many)]},
    }
    rows = list(bars.first_contact({"first_contact": found}))
    values = [row.value.median for row in rows]
    assert values == pytest.approx([0.5, 0.7, 0.7, 4.0, 4.0, 0.25, 0.05, 1.0 / 2.9, 1.0])
    assert [row.met for row in rows] == [True, True, False, False, False, True, True, True, False]
    assert "still quickly compiled" in rows[3].note


def test_peak_bytes_have_a_bar_or_a_reason():
    results = copy.deepcopy(RESULTS)
    results["peak"] = {"conv_net": {"tapejax": [100, 110], "tapejax, no wrt": [130, 130], "jax.jit": [100, 100]}}
    assert [row.met for row in bars.peak(results)] == [None, None, True, False]
    results |= {"peak": {}, "skipped": {"peak bytes": "not on this system"}}
    assert {row.note for row in bars.peak(results)} == {"not on this system"}


def test_a_run_for_the_bars_measures_what_they_ask_for():
    everything = all_workloads()
    for workload, (names, modes) in bars.needs().items():
        assert workload in everything
        assert set(names) <= set(PLACES)
        assert set(modes) <= {"forward", "gradient"}
    assert set(bars.PEAKS) <= set(everything)
    assert not set(OTHERS) & set(everything)
    assert not parse([]).full
    assert not parse([]).tuned


def test_another_run_stands_beside_the_bars():
    other: dict[str, Any] = copy.deepcopy(RESULTS) | {"settings": "tuned"}
    other["workloads"]["mlp_6x32"]["gradient"]["tapejax"] = {"seconds": [0.25, 0.5, 1.0], "cores": [1.0] * 3}
    shown = report.bar_table(RESULTS, other)
    assert "tuned" in shown.splitlines()[0]
    line = next(line for line in shown.splitlines() if "/ torch, mlp_6x32" in line)
    assert [cell.strip() for cell in line.split("|")][2:7] == ["0.50", "0.50 to 0.50", "0.65", "met", "0.25"]


def test_the_report_goes_between_the_markers_of_a_page():
    page = f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n"
    filled = report.fill(page, report.text(RESULTS))
    assert filled.startswith("before")
    assert filled.endswith("after\n")
    assert "\nold\n" not in filled
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
