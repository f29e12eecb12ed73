"""Several meshes in one process: what is kept for one (numbers, seeds, plans, programs) must not reach another."""

import os
import pathlib
import subprocess
import sys

import pytest


@pytest.mark.parametrize("kinds", [1, pytest.param(2, marks=pytest.mark.slow)])  # of axes: explicit ones, too
def test_several_meshes_on_eight_devices(kinds):
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"
    environment = os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-m", "tests.meshes_on_devices", str(kinds)]
    root = pathlib.Path(__file__).parents[1]
    done = subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line for line in lines if not line.startswith("ok ")] == []
    assert len(lines) == kinds * 8 * 4
