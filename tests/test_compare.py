"""The comparison helper reports what it found and notices what it must."""

from __future__ import annotations

import numpy as np
import pytest

from tests.compare import assert_close, difference


def test_largest_error_and_ratio() -> None:
    result = difference([[1.0, 2.0], [3.0, 4.5]], [[1.0, 2.0], [3.0, 4.0]])
    assert result.max_abs == 0.5
    assert result.where == (1, 1)
    assert result.nmse == pytest.approx(0.25 / 30)


@pytest.mark.parametrize(
    ("found", "wanted", "limits", "message"),
    [
        ([1.0, 2.0], [1.0, 2.5], {"max_abs": 0.4}, r"largest error 5\.000e-01 at \(1,\)"),
        ([1.0, 2.0], [1.0, 2.5], {"nmse": 1e-3}, r"error ratio \(nmse\) 3\.4"),
        ([[1.0, 2.0]], [[2.0, 1.0]], {"argmax": True}, "argmax: 1 of 1 rows differ"),
        ([1.0, 2.0], [2.0, 1.0], {"argmax": True}, "found 1, wanted 0"),
        ([1.0, np.nan], [1.0, 2.0], {"max_abs": 9.0}, r"nan: found at 1 places, wanted at 0"),
        ([1.0, np.inf], [1.0, -np.inf], {"max_abs": 9.0}, r"\+inf: found at 1 places"),
        ([1.0], [1.0, 2.0], {"max_abs": 9.0}, r"shape: found \(1,\), wanted \(2,\)"),
        ([1.0], [0.0], {"nmse": 1.0}, "nmse"),
    ],
)
def test_differences_are_noticed(
    found: list[float], wanted: list[float], limits: dict[str, float], message: str
) -> None:
    with pytest.raises(AssertionError, match=message):
        assert_close(found, wanted, **limits)  # type: ignore[arg-type]


def test_equal_non_finite_places_are_accepted() -> None:
    values = [1.0, np.nan, np.inf, -np.inf]
    assert assert_close(values, values, max_abs=0.0, nmse=0.0).max_abs == 0.0


def test_a_limit_is_needed() -> None:
    with pytest.raises(ValueError, match="found no limit"):
        assert_close([1.0], [1.0])
