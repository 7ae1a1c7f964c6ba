"""Errors and warnings of the compile backend."""

from __future__ import annotations

from trnx.core import Source
from trnx.core.errors import TrnxError, message


class UnsupportedOpError(TrnxError, NotImplementedError):
    """A captured graph holds something the backend has no rule for.

    The text names the operator with its dtypes and shapes, the user's line, and one remedy.
    """

    def __init__(self, cause: str, source: Source, remedy: str) -> None:
        super().__init__(message(cause, source, remedy))
        self.source = source


class GraphFallbackWarning(UserWarning):
    """A captured graph runs eagerly because of option ``fallback_execution``."""


class ExactShapesWarning(UserWarning):
    """A graph with symbolic sizes is compiled once per size instead of once per bucket."""
