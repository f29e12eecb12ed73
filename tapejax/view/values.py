"""Arrays as the viewer shows them: numbers while they are few, a heat map beyond."""

from __future__ import annotations

import base64
import math
from typing import Any

import numpy as np

from tapejax.ground.placement import local_part
from tapejax.tensor.tensor import Tensor

NUMBERS = 36  # elements that are shown as numbers
CELLS = 24  # rows and columns of a heat map, at most


def describe(value: Any, cells: int = CELLS) -> dict[str, Any]:
    """What there is to show of an array; all of it goes into JSON."""
    array, part = local_part(value.value if isinstance(value, Tensor) else value)
    about: dict[str, Any] = {"shape": list(array.shape), "dtype": str(array.dtype), "norm": number(norm(array))}
    if part:
        about["part"] = part
    if array.size <= NUMBERS:
        about["data"] = [number(item) for item in array.ravel()]
        return about
    real = np.abs(array) if array.dtype.kind == "c" else array
    real = real.astype(np.float64)
    finite = real[np.isfinite(real)]
    about["bad"] = int(real.size - finite.size)
    if finite.size:
        about |= {"min": number(finite.min()), "max": number(finite.max()), "mean": number(finite.mean())}
    about["heat"] = _heat(real, cells)
    return about


def number(value: Any) -> float | str:
    """A number for JSON: as short as its dtype allows; what JSON cannot write, and complex numbers, as text."""
    value = np.asarray(value)
    if value.dtype.kind == "c":
        return f"{_shortest(value.real)}{'+' if not np.signbit(value.imag) else ''}{_shortest(value.imag)}i"
    if value.dtype.kind in "iub":
        return int(value)
    return _shortest(value)


def _shortest(value: Any) -> float | str:
    value = value if value.dtype in (np.float32, np.float64) else value.astype(np.float32)
    if not np.isfinite(value):
        return str(value.item())
    found = float(str(value[()]))
    return int(found) if found == int(found) and abs(found) < 1e15 and not (found == 0 and np.signbit(value)) else found


def norm(array: np.ndarray) -> np.ndarray:
    wide = array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)
    with np.errstate(all="ignore"):
        return np.asarray(np.sqrt(np.sum(np.abs(wide) ** 2)), np.float32)


def _heat(array: np.ndarray, cells: int) -> dict[str, Any]:
    """Cells of one byte each, -127 to 127 of the largest magnitude; -128 where there is a NaN or an infinity.

    A cell stands for a block of elements and shows the one of largest magnitude.
    """
    rows = array.reshape(1, -1) if array.ndim < 2 else array.reshape(-1, array.shape[-1])
    height = max(1, math.ceil(rows.shape[0] / cells))
    width = max(1, math.ceil(rows.shape[1] / (cells if rows.shape[0] > 1 else 2 * cells)))
    finite = np.isfinite(rows)
    high = _blocks(np.where(finite, rows, -np.inf), height, width, -np.inf).max(axis=(1, 3))
    low = _blocks(np.where(finite, rows, np.inf), height, width, np.inf).min(axis=(1, 3))
    bad = _blocks(~finite, height, width, False).any(axis=(1, 3))
    chosen = np.where(bad, 0.0, np.where(high >= -low, high, low))
    largest = float(np.abs(chosen).max())
    levels = np.round(chosen / largest * 127) if largest else np.zeros_like(chosen)
    levels = np.where(bad, -128, levels).astype(np.int8)
    return {
        "rows": levels.shape[0],
        "cols": levels.shape[1],
        "block": [height, width],
        "scale": number(np.float32(largest)),
        "cells": base64.b64encode(levels.tobytes()).decode(),
    }


def _blocks(array: np.ndarray, height: int, width: int, fill: Any) -> np.ndarray:
    below, beside = -array.shape[0] % height, -array.shape[1] % width
    padded = np.pad(array, ((0, below), (0, beside)), constant_values=fill)
    return padded.reshape(padded.shape[0] // height, height, padded.shape[1] // width, width)


def brief(value: Any) -> str:
    """A number for a table: four digits.

    >>> brief(0.000123456), brief(12.0), brief("nan")
    ('1.235e-04', '12', 'nan')
    """
    if isinstance(value, str):
        return value
    if value == 0 or 1e-3 <= abs(value) < 1e5:
        return f"{value:.4g}"
    return f"{value:.3e}"
