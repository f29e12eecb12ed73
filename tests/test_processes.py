"""Two processes on this machine: what one of them holds or looks at must not change which programs run."""

import os
import pathlib
import socket
import subprocess
import sys

import pytest


@pytest.mark.slow
def test_processes_that_look_at_different_things_agree():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=2"
    environment = os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    root = pathlib.Path(__file__).parents[1]
    both = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.processes", str(index), str(port)],
            env=environment, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for index in range(2)
    ]  # fmt: skip
    try:
        said = [process.communicate(timeout=240)[0] for process in both]
    finally:
        for process in both:
            process.kill()
    for index, text in enumerate(said):
        assert f"ok {index}" in text, text[-3000:]
