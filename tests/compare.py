"""The one way in which tests compare arrays: largest error with its place, error ratio, non-finite places."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray


@dataclass(frozen=True)
class Difference:
    """How far `actual` is from `expected`, over the places where both are finite.

    max_abs: largest absolute error, at index `where`. nmse: sum of squared errors / sum of squared wanted.
    """

    max_abs: float
    where: tuple[int, ...]
    nmse: float


def difference(actual: ArrayLike, expected: ArrayLike, what: str = "") -> Difference:
    """Difference of two arrays of one shape whose NaN, +inf and -inf places agree; else AssertionError."""
    found = np.asarray(actual, dtype=np.float64)
    wanted = np.asarray(expected, dtype=np.float64)
    label = f"{what}: " if what else ""
    assert found.shape == wanted.shape, f"{label}shape: found {found.shape}, wanted {wanted.shape}"
    for name, test in (("nan", np.isnan), ("+inf", np.isposinf), ("-inf", np.isneginf)):
        _check_places(test(found), test(wanted), f"{label}{name}")
    finite = np.isfinite(wanted)
    error = np.abs(np.where(finite, found, 0.0) - np.where(finite, wanted, 0.0))
    if error.size == 0:
        return Difference(0.0, (), 0.0)
    where = tuple(int(index) for index in np.unravel_index(np.argmax(error), error.shape))
    energy = float(np.sum(np.where(finite, wanted, 0.0) ** 2))
    squared = float(np.sum(error**2))
    ratio = squared / energy if energy > 0 else (0.0 if squared == 0 else float("inf"))
    return Difference(float(error[where]), where, ratio)


def assert_close(
    actual: ArrayLike,
    expected: ArrayLike,
    *,
    max_abs: float | None = None,
    nmse: float | None = None,
    argmax: bool = False,
    what: str = "",
) -> Difference:
    """Assert that `actual` is `expected` within every limit given, at least one; return the difference.

    argmax: the largest entry of each row (last axis) must be at the same place in both.
    """
    if max_abs is None and nmse is None and not argmax:
        raise ValueError("assert_close: found no limit, wanted at least one of max_abs, nmse, argmax")
    found, wanted = np.asarray(actual), np.asarray(expected)
    result = difference(found, wanted, what)
    label = f"{what}: " if what else ""
    if max_abs is not None:
        assert result.max_abs <= max_abs, (
            f"{label}largest error {result.max_abs:.3e} at {result.where}, wanted at most {max_abs:.3e}; "
            f"found {found[result.where]!r}, wanted {wanted[result.where]!r} there; nmse {result.nmse:.3e}"
        )
    if nmse is not None:
        assert result.nmse <= nmse, (
            f"{label}error ratio (nmse) {result.nmse:.3e}, wanted at most {nmse:.3e}; "
            f"largest error {result.max_abs:.3e} at {result.where}"
        )
    if argmax:
        _check_argmax(found, wanted, label)
    return result


def _check_places(found: NDArray[np.bool_], wanted: NDArray[np.bool_], label: str) -> None:
    differing = np.argwhere(found != wanted)
    assert len(differing) == 0, (
        f"{label}: found at {int(found.sum())} places, wanted at {int(wanted.sum())}; "
        f"{len(differing)} differ, the first at {tuple(int(index) for index in differing[0])}"
    )


def _check_argmax(found: NDArray[np.generic], wanted: NDArray[np.generic], label: str) -> None:
    found_best, wanted_best = np.argmax(found, axis=-1), np.argmax(wanted, axis=-1)
    rows = np.argwhere(np.atleast_1d(found_best != wanted_best))
    assert len(rows) == 0, (
        f"{label}argmax: {len(rows)} of {found_best.size} rows differ, the first at "
        f"{tuple(int(index) for index in rows[0])}: found {np.atleast_1d(found_best)[tuple(rows[0])]}, "
        f"wanted {np.atleast_1d(wanted_best)[tuple(rows[0])]}"
    )
