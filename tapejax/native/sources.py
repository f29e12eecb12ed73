"""The C sources of this folder, and how they are built. Nothing but Python's own library: the installer reads this, too."""

from __future__ import annotations

import hashlib
import os
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path

FOLDER = Path(__file__).parent


def mark_of(folder: Path) -> str:
    """What a build carries of the sources that it was made from."""
    found = hashlib.sha256()
    for file in sorted([*folder.glob("*.c"), *folder.glob("*.h")]):
        found.update(file.read_bytes())
    return found.hexdigest()[:16]


def target(folder: Path) -> Path:
    """The file that the sources become for this Python."""
    return folder / f"built{sysconfig.get_config_var('EXT_SUFFIX')}"


def build(folder: Path) -> str:
    """Build them; why that could not be, or ''."""
    if sys.implementation.name != "cpython" or sysconfig.get_config_var("Py_GIL_DISABLED"):
        return "it is for CPython with its global lock"
    if os.name != "posix":
        return "it is built on Linux and macOS only"
    made = target(folder)
    unfinished = made.with_suffix(f".{os.getpid()}")  # nobody is to load half a file
    command = [
        *shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"),
        "-O2", "-fPIC", "-shared", "-fvisibility=hidden", *(["-undefined", "dynamic_lookup"] if sys.platform == "darwin" else []),
        f'-DSOURCE="{mark_of(folder)}"', f"-I{sysconfig.get_path('include')}",
        *map(str, sorted(folder.glob("*.c"))), "-o", str(unfinished),
    ]  # fmt: skip
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        return f"no C compiler: {error}"
    if done.returncode:
        unfinished.unlink(missing_ok=True)
        return f"the C compiler: {done.stderr.strip()[-500:]}"
    unfinished.replace(made)
    return ""
