"""The values of flags, read from text: what is wrong is named with what was wanted."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .limits import INT32_MAX

Reader = Callable[[str], Any]

_TRUE = ("1", "true", "on", "enabled", "yes")
_FALSE = ("0", "false", "off", "disabled", "no")
_UNLIMITED_MIB = 1 << 30


class FlagError(ValueError):
    """A value that a flag does not take."""


def integer_value(low: int, high: int = INT32_MAX) -> Reader:
    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise FlagError(f"found {text!r}, wanted an integer") from None
        if not low <= value <= high:
            raise FlagError(f"found {value}, wanted {low} .. {high}")
        return value

    return read


def number_value(low: float, high: float) -> Reader:
    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise FlagError(f"found {text!r}, wanted a number") from None
        if not (math.isfinite(value) and low <= value <= high):
            raise FlagError(f"found {text}, wanted {low:g} .. {high:g}")
        return value

    return read


def one_of(*values: str) -> Reader:
    def read(text: str) -> str:
        if text not in values:
            raise FlagError(f"found {text!r}, wanted one of {', '.join(values)}")
        return text

    return read


def switch_value(text: str) -> bool:
    if text.lower() in _TRUE:
        return True
    if text.lower() in _FALSE:
        return False
    raise FlagError(f"found {text!r}, wanted on or off")


def text_value(text: str) -> str:
    if not text:
        raise FlagError("found an empty text, wanted one")
    return text


def path_value(text: str) -> Path:
    return Path(text_value(text))


def prefix_value(text: str) -> str:
    prefix = text.rstrip("/")
    if prefix and not re.fullmatch(r"(/[A-Za-z0-9._~-]+)+", prefix):
        raise FlagError(f"found {text!r}, wanted a path that begins with a slash")
    return prefix


def key_list(text: str) -> list[str]:
    keys = [key for key in text.split(",") if key]
    if not keys:
        raise FlagError("found no key, wanted keys separated by commas")
    return keys


def mebibytes(text: str) -> int:
    """Bytes; -1: as much as there is."""
    value: int = integer_value(-1, _UNLIMITED_MIB)(text)
    return (_UNLIMITED_MIB if value < 0 else value) << 20


def only(wanted: str, reason: str) -> Reader:
    """For a flag of which one value is what happens here anyway."""

    def read(text: str) -> str:
        if text != wanted:
            raise FlagError(f"found {text!r}, wanted {wanted}: {reason}")
        return text

    return read
