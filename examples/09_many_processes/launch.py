"""Starts processes of train.py on this machine and watches them: if one dies, the others are stopped, and it says why.

    python launch.py --processes 2 --layout fully --folder run      # again: resumes

On several machines a scheduler starts train.py on each: see docs/how-to/run-on-many-machines.md.
"""

import argparse
import pathlib
import signal
import socket
import subprocess
import sys
import time

from train import options_of

TRAIN = pathlib.Path(__file__).with_name("train.py")


def launch(options: argparse.Namespace) -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = ["--processes", options.processes, "--address", f"127.0.0.1:{port}", "--folder", options.folder]
    shared += ["--layout", options.layout, "--steps", options.steps, "--save-every", options.save_every]
    shared += ["--pause", options.pause, *["--eager"] * options.eager]
    command = lambda index: [sys.executable, str(TRAIN), *map(str, shared), "--process", str(index)]
    running = {index: subprocess.Popen(command(index)) for index in range(options.processes)}
    print("pids", *[process.pid for process in running.values()], flush=True)
    try:
        return watch(running)
    finally:
        for process in running.values():
            process.kill()


def watch(running: dict[int, subprocess.Popen]) -> int:
    """Wait until all have ended; if one ends badly, stop waiting for the others."""
    while running:
        for index, process in list(running.items()):
            status = process.poll()
            if status == 0:
                del running[index]
            elif status is not None:
                why = signal.Signals(-status).name if status < 0 else f"status {status}"
                others = ", ".join(str(other) for other in running if other != index)
                print(
                    f"process {index} ended with {why}; stopping {others or 'nobody'}. Start again to resume.",
                    flush=True,
                )
                return 1
        time.sleep(0.1)
    return 0


if __name__ == "__main__":
    sys.exit(launch(options_of(__doc__).parse_args()))
