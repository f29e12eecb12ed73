"""The example of training in many processes: killed and resumed, onto another mesh, in two processes, with a peer that dies."""

import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager
from importlib.util import find_spec

import pytest

from tests.accelerators.subprocesses import ROOT, environment, free_port

pytestmark = pytest.mark.skipif(find_spec("orbax") is None, reason="needs orbax-checkpoint")
FOLDER = ROOT / "examples" / "09_many_processes"


@contextmanager
def started(script, *options, devices):
    command = [sys.executable, "-u", str(FOLDER / script), *map(str, options)]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    given = {"env": environment(devices) | {"PYTHONPATH": path}, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(command, stdout=subprocess.PIPE, **given) as process:
        try:
            yield process
        finally:
            process.kill()


def losses_in(text):
    return {int(step): loss for step, loss in re.findall(r"^step (\d+) loss (\S+)$", text, re.MULTILINE)}


def run(script, *options, devices):
    with started(script, *options, devices=devices) as process:
        text, _ = process.communicate(timeout=240)
    assert process.returncode == 0, text[-3000:]
    assert "done" in text
    return losses_in(text)


def read_until(process, wanted):
    lines = []
    for line in process.stdout:
        lines.append(line)
        if wanted in line:
            return "".join(lines)
    raise AssertionError(f"no {wanted!r} in {''.join(lines)[-3000:]}")


def close(found, expected):
    assert found.keys() <= expected.keys()
    assert found
    assert all(abs(float(loss) - float(expected[step])) < 1e-5 for step, loss in found.items()), (found, expected)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The losses of a run that nobody disturbs."""
    losses = run("train.py", "--folder", tmp_path_factory.mktemp("whole"), "--steps", 10, devices=4)
    assert float(losses[9]) < 0.9 * float(losses[0])
    return losses


@pytest.mark.slow
def test_killed_and_resumed_is_as_if_nothing_had_happened(whole, tmp_path):
    with started("train.py", "--folder", tmp_path / "run", "--pause", 0.2, devices=4) as killed:
        before = losses_in(read_until(killed, "step 5"))
        killed.send_signal(signal.SIGKILL)
        killed.communicate(timeout=60)
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    after = run("train.py", "--folder", tmp_path / "run", "--steps", 10, devices=4)
    assert 0 < min(after) <= 6
    assert before | after == whole  # to the last digit that is printed
    close(run("train.py", "--folder", tmp_path / "copy", "--steps", 8, devices=2), whole)  # onto another mesh


@pytest.mark.slow
@pytest.mark.parametrize("options", [["--layout", "data"], ["--layout", "fully", "--eager"]], ids=["data", "eager"])
def test_two_processes_learn_what_one_does(whole, tmp_path, options):
    found = run("launch.py", "--processes", 2, "--folder", tmp_path, "--steps", 4, *options, devices=2)
    assert len(found) == 4
    close(found, whole)


@pytest.mark.slow
def test_a_peer_that_dies_is_told_by_the_launcher(tmp_path):
    options = ["--processes", 2, "--folder", tmp_path, "--pause", 0.5, "--steps", 200, "--save-every", 100]
    with started("launch.py", *options, devices=2) as launcher:
        pids = [int(pid) for pid in read_until(launcher, "pids").split("pids ")[1].split()]
        read_until(launcher, "step 1 ")
        os.kill(pids[1], signal.SIGKILL)
        text, _ = launcher.communicate(timeout=60)
    assert launcher.returncode == 1
    assert "process 1 ended with SIGKILL; stopping 0" in text


@pytest.mark.slow
def test_a_peer_that_dies_ends_the_others_in_time(tmp_path):
    options = ["--processes", 2, "--address", f"127.0.0.1:{free_port()}", "--folder", tmp_path, "--pause", 0.5]
    options += ["--steps", 200, "--save-every", 100, "--process"]
    with started("train.py", *options, 0, devices=2) as first, started("train.py", *options, 1, devices=2) as second:
        read_until(first, "step 1 ")
        second.send_signal(signal.SIGKILL)
        text, _ = first.communicate(timeout=120)
    assert first.returncode != 0
    assert re.search(r"heartbeat|Connection (closed|reset)|peer", text), text[-3000:]
