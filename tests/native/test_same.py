"""With and without the C extension: the same, wherever anybody can look."""

import copy
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import pytest

from tapejax.native import native
from tests.native.scenarios import SCENARIOS, run

ROOT = pathlib.Path(__file__).parents[2]
SECONDS = 150  # for all of them
pytestmark = pytest.mark.skipif(native is None, reason="the C extension is not built here, or TAPEJAX_NATIVE=0")


class Process:
    """Scenarios in a process of their own. If it ends before the last one, another goes on after the one it was at."""

    def __init__(self, setting, names=()):
        self.setting, self.left, self.seen, self.crashes = setting, list(names or SCENARIOS), {}, {}
        self.start()

    def start(self):
        # jax names dtypes in the order of a set: one order for both.
        own = {"PYTHONHASHSEED": "0", "PYTHONFAULTHANDLER": "1", "TAPEJAX_NATIVE": self.setting}
        environment = {**os.environ, "PYTHONPATH": str(ROOT), **own}
        command = [sys.executable, "-m", "tests.native.scenarios", *self.left]
        # Files, not pipes: nobody reads while both run.
        self.out, self.errors = (tempfile.TemporaryFile("w+") for _ in range(2))  # noqa: SIM115  # closed by `wait`
        self.process = subprocess.Popen(command, env=environment, cwd=ROOT, stdout=self.out, stderr=self.errors)

    def wait(self):
        """Read the answers; whether all are there."""
        try:
            code = self.process.wait(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        for file in (self.out, self.errors):
            file.seek(0)
        for line in self.out.read().splitlines():
            try:
                report = json.loads(line)
            except ValueError:  # it ended while it wrote
                break
            if "native" in report:
                self.native = report["native"]
            else:
                self.seen[report["name"]] = report["seen"]
        self.left = [name for name in self.left if name not in self.seen]
        if self.left:
            self.crashes[self.left.pop(0)] = f"ended with {code}\n{self.errors.read()[-4000:]}"
        for file in (self.out, self.errors):
            file.close()
        return not self.left

    def all(self):
        for _ in range(5):
            if self.wait():
                break
            self.start()
        else:
            self.crashes |= dict.fromkeys(self.left, "too many crashes before it")
        return self


def differences(plain, quick, path=""):
    """Where two answers differ, one line for each place."""
    if type(plain) is not type(quick):
        return [f"{path}: {plain!r:.500} in Python, {quick!r:.500} in C"]
    if isinstance(plain, dict):
        if list(plain) != list(quick):
            return [f"{path}: has {list(plain)} in Python, {list(quick)} in C"]
        return [line for key in plain for line in differences(plain[key], quick[key], f"{path}.{key}")]
    if isinstance(plain, list):
        found = [f"{path}: {len(plain)} in Python, {len(quick)} in C"] if len(plain) != len(quick) else []
        pairs = enumerate(zip(plain, quick))
        return found + [line for i, (a, b) in pairs for line in differences(a, b, f"{path}[{i}]")]
    return [] if plain == quick else [f"{path}:\n    {plain!r:.1000} in Python\n    {quick!r:.1000} in C"]


def holds(seen, key, value=None):
    """Whether a dict with this key, and this value if one is given, is anywhere in an answer."""
    if isinstance(seen, dict):
        here = key in seen and (value is None or seen[key] is value)
        return here or any(holds(one, key, value) for one in seen.values())
    return isinstance(seen, list) and any(holds(one, key, value) for one in seen)


def wrong(plain, quick, name):
    """What is to be said of one scenario, if anything."""
    crashed = [f"{how}: {one.crashes[name]}" for how, one in (("Python", plain), ("C", quick)) if name in one.crashes]
    if crashed:
        return crashed
    found = differences(plain.seen[name], quick.seen[name])
    said = [f"{len(found)} differences", *found[:12]] if found else []
    if holds(plain.seen[name], "not caught"):
        said.append(f"an error was not caught: {plain.seen[name]}")
    if holds(plain.seen[name], "as jax", False):
        said.append("the numbers are not jax's")
    return said


@pytest.mark.parametrize("part", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_same(part):
    """Many in one test, as a worker that took some of them would run all of them again."""
    names = list(SCENARIOS)[part::2]
    started = [Process("0", names), Process("1", names)]  # at the same time
    plain, quick = [one.all() for one in started]
    assert [plain.native, quick.native] == [False, True]
    found = {name: wrong(plain, quick, name) for name in names}
    said = ["\n    ".join([name, *lines]) for name, lines in found.items() if lines]
    assert not said, f"{len(said)} of {len(names)} scenarios\n" + "\n".join(said)


# --- the comparison itself -----------------------------------------------------------------------------------


def places(seen, path=()):
    """The way to every leaf of an answer."""
    if isinstance(seen, (list, dict)):
        for key in seen if isinstance(seen, dict) else range(len(seen)):
            yield from places(seen[key], (*path, key))
    else:
        yield path


def test_a_planted_difference_is_found():
    """Anywhere in an answer, of any kind."""
    answer = run("recording_on_and_off")
    assert not differences(answer, copy.deepcopy(answer))
    ways = list(places(answer))
    assert len(ways) > 50
    for way in ways[:: len(ways) // 25]:
        for planted in ("something else", 1234567, []):
            other = copy.deepcopy(answer)
            inside = other
            for key in way[:-1]:
                inside = inside[key]
            inside[way[-1]] = planted
            assert len(differences(answer, other)) == 1, way


def test_differences_of_each_kind_are_found():
    assert differences([1, 2], [1, 2, 3])
    assert differences({"a": 1}, {"a": 1, "b": 2})
    assert differences({"a": 1, "b": 2}, {"b": 2, "a": 1})
    assert differences([True], [1])
    assert differences("0.0", "-0.0")
    assert not differences([{"a": ["nan"]}], [{"a": ["nan"]}])


def test_an_answer_that_is_missing_is_no_answer():
    """A process that ends early is a failure of the scenario it was at, and the others are asked for again."""
    process = Process("0", ["no such scenario", "data_is_copied"]).all()
    assert list(process.crashes) == ["no such scenario"]
    assert "KeyError" in process.crashes["no such scenario"]
    assert list(process.seen) == ["data_is_copied"]
