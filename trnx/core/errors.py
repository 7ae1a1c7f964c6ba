"""Exception classes, the one form of their texts, and traceback filtering.

Every error has the same text: cause, the user's line, one remedy. Build it with :func:`message`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import TracebackType
from typing import ParamSpec, TypeVar

from trnx.core import config
from trnx.core.source import Source, current_source, is_internal_file


class TrnxError(Exception):
    """Base of every error raised on purpose by trnx."""


class ShapeError(TrnxError, TypeError, ValueError):
    """Shapes do not fit together, or a shape is not legal for an operation."""


class DTypeError(TrnxError, TypeError):
    """A dtype is unknown, not accepted by an operation, or has no implicit promotion."""


class UnknownTypeError(TrnxError, TypeError):
    """A value of a type that cannot be an operand."""


class IntegerRangeError(DTypeError, OverflowError):
    """A Python int does not fit into the integer dtype it would have to take."""


class TraceError(TrnxError, TypeError):
    """A traced value was used where a concrete one is needed, or after its trace ended."""


class RuleError(TrnxError, NotImplementedError):
    """A primitive has no rule for a transform."""


class DimError(TrnxError, ValueError):
    """A symbolic size has no answer for this question, or a value is out of its bounds."""


class BoundsError(TrnxError, IndexError):
    """A static index is out of range."""


class CheckError(TrnxError, ValueError):
    """The IR verifier found a violated constraint; `constraint` holds its number (``P3``)."""

    def __init__(self, text: str, constraint: str = "") -> None:
        super().__init__(text)
        self.constraint = constraint


class ParseError(TrnxError, ValueError):
    """A program text does not follow the grammar."""


class LoweringError(TrnxError, RuntimeError):
    """The compiler cannot turn an equation into tile instructions."""


class TileError(TrnxError, ValueError):
    """A tile program breaks a legality rule of the hardware."""


class UnsupportedError(TrnxError, NotImplementedError):
    """The request is well formed but not supported here."""


def message(cause: str, source: Source | None, remedy: str = "") -> str:
    """The text of an error: ``<cause> (at <user line>). <remedy>.``

    Args:
        cause: what is wrong, one sentence without the final stop.
        source: the user's line; None looks up the line that is running now.
        remedy: what to do, one sentence without the final stop; empty leaves it out.
    """
    where = current_source() if source is None else source
    text = f"{cause} (at {where})." if where.file else f"{cause}."
    return f"{text} {remedy}." if remedy else text


P = ParamSpec("P")
R = TypeVar("R")


def filter_traceback(traceback: TracebackType | None) -> TracebackType | None:
    """A copy of `traceback` without internal frames; None when nothing is left."""
    kept: list[TracebackType] = []
    while traceback is not None:
        if not is_internal_file(traceback.tb_frame.f_code.co_filename):
            kept.append(traceback)
        traceback = traceback.tb_next
    result: TracebackType | None = None
    for entry in reversed(kept):
        result = TracebackType(result, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return result


def hide_internal_frames(error: Exception) -> None:
    """Drop internal frames from the traceback of a caught error that will be raised again.

    The first frame, that of the caller, stays: Python would add it again. An error that trnx did
    not raise on purpose keeps its frames when they are all internal: they are all there is to see.
    """
    traceback = error.__traceback__
    if traceback is not None and config.traceback_filter.value:
        filtered = filter_traceback(traceback.tb_next)
        if filtered is not None or isinstance(error, TrnxError):
            traceback.tb_next = filtered


def user_traceback(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a public entry point: errors that pass through it show only the user's frames.

    ``TRNX_TRACEBACK_FILTER=0`` (option `traceback_filter`) keeps every frame.
    """

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            hide_internal_frames(error)
            raise

    return wrapper
