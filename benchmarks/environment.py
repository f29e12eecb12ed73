"""The same machine for all: one thread each, no compilation cache; set before anything is imported."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
import sysconfig
from pathlib import Path

ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "NUMEXPR_NUM_THREADS": "1",
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "1",
    "NPROC": "1",  # the size of XLA's own thread pool on CPU
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
}
# glibc gives freed memory back to the system, depending on what lies above it on the heap, and pays with page faults
# for having it again. That is luck, and for arrays of a megabyte it can double a time: with --tuned it is told to keep it.
MEMORY = {"MALLOC_TRIM_THRESHOLD_": str(1 << 30), "MALLOC_MMAP_THRESHOLD_": str(1 << 30)}
QUIET = {
    "JAX_PLATFORMS": "cpu",
    "JAX_ENABLE_COMPILATION_CACHE": "false",  # compile times are measured: nothing may come from disk
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "TF_ENABLE_ONEDNN_OPTS": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "DEV": "CPU",  # tinygrad's device
    "THREADS": "0",  # tinygrad's threads
    "PYTHONHASHSEED": "0",
    "TORCHINDUCTOR_COMPILE_THREADS": "1",
}
TUNED = MEMORY | {"BENCHMARKS_TUNED": "1"}  # without: jax's second thread and glibc's thrift are left as they are
SETTINGS = ONE_THREAD | QUIET | TUNED  # every name that is ever set here


def enter(module: str) -> None:
    """Start the module again in this process under its settings, unless it runs under them already."""
    settings = ONE_THREAD | QUIET | (TUNED if "--tuned" in sys.argv else {})
    others = [name for name in TUNED if name not in settings and name in os.environ]
    if not others and all(os.environ.get(name) == value for name, value in settings.items()):
        return
    for name in others:
        del os.environ[name]
    os.environ.update(settings)
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", module, *sys.argv[1:]])


def as_it_comes() -> bool:
    return "BENCHMARKS_TUNED" not in os.environ


def describe() -> dict[str, str]:
    """What was measured on, for the head of every report."""
    names = ["jax", "jaxlib", "numpy", "torch", "autograd", "mygrad", "tensorflow", "tensorflow-cpu", "tinygrad"]
    found = {"python": platform.python_version(), "machine": f"{_processor()}, {os.cpu_count()} cores"}
    for name in names:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    built = Path(__file__).parents[1] / "tapejax" / "native" / f"built{sysconfig.get_config_var('EXT_SUFFIX')}"
    found["tapejax/native"] = "built" if built.exists() and os.environ.get("TAPEJAX_NATIVE") != "0" else "not there"
    found["load"] = f"{os.getloadavg()[0]:.1f} at the start"
    return found


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as lines:
            return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.machine()
