"""Checks of arguments that come from Python code: what they return fits the C types."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .errors import ArgumentError


def integer(name: str, value: Any, low: int, high: int) -> int:
    """The value as an int in low .. high; ArgumentError otherwise."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise ArgumentError(f"{name}: found {value!r}, wanted an integer")
    if not low <= value <= high:
        raise ArgumentError(f"{name}: found {value}, wanted {low} .. {high}")
    return int(value)


def integers(name: str, values: Any, low: int, high: int) -> npt.NDArray[np.int64]:
    """A one-dimensional array of integers in low .. high; ArgumentError names the first that is not."""
    try:
        array = np.asarray(values)
    except ValueError:
        raise ArgumentError(f"{name}: found lists of several lengths, wanted a list of integers") from None
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise ArgumentError(
            f"{name}: found {array.ndim} dimensions of {array.dtype}, wanted a list of integers"
        )
    outside = np.nonzero((array < low) | (array > high))[0]
    if outside.size:
        index = int(outside[0])
        raise ArgumentError(f"{name}[{index}]: found {array[index]}, wanted {low} .. {high}")
    return array.astype(np.int64, copy=False)
