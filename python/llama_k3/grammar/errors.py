"""The error of everything that a grammar cannot enforce."""

from __future__ import annotations

from ..errors import ArgumentError


class GrammarError(ArgumentError):
    """A schema, tool, choice or grammar that cannot be enforced: its place, what was found and wanted."""
