"""Scripts that need more than one device, or more than one process: jax counts them when it starts."""

import os
import pathlib
import socket
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[2]


def environment(devices: int) -> dict[str, str]:
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
    flags += " --xla_cpu_collective_call_terminate_timeout_seconds=120"  # a device that never comes: end, do not hang
    return os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}


def lines_of(module: str, *args: str, devices: int = 8, timeout: int = 300) -> list[str]:
    """What a module of the tests prints on virtual devices; it must end well."""
    command = [sys.executable, "-m", module, *args]
    done = subprocess.run(
        command, env=environment(devices), cwd=ROOT, capture_output=True, text=True, timeout=timeout
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def together(module: str, *args: str, devices: int = 2, timeout: int = 240) -> list[str]:
    """What two processes print that run a module of the tests together, each with its number and the port."""
    port = str(free_port())
    both = [
        subprocess.Popen(
            [sys.executable, "-m", module, str(index), port, *args],
            env=environment(devices), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for index in range(2)
    ]  # fmt: skip
    try:
        return [process.communicate(timeout=timeout)[0] for process in both]
    finally:
        for process in both:
            process.kill()
