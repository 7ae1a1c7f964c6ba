"""Exception classes, the one form of their texts, and traceback filtering.

Every error has the same text: cause, the user's line, one remedy. Build it with :func:`message`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from traceback import walk_tb
from types import TracebackType
from typing import ParamSpec, TypeVar

from trnx.core import config
from trnx.core.source import (
    Source,
    current_source,
    is_internal_file,
    is_library_file,
    is_own_file,
    takes_arguments,
)


class TrnxError(Exception):
    """Base of every error raised on purpose by trnx."""


class ShapeError(TrnxError, TypeError, ValueError):
    """Shapes do not fit together, or a shape is not legal for an operation."""


class DTypeError(TrnxError, TypeError):
    """A dtype is unknown, not accepted by an operation, or has no implicit promotion."""


class UnknownTypeError(TrnxError, TypeError):
    """A value of a type that cannot be an operand."""


class ArgumentError(TrnxError, TypeError, ValueError):
    """An argument that a function cannot make sense of; its cause is the error met on the way."""


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


_UNPLANNED = (TypeError, ValueError, IndexError, KeyError, AttributeError, OverflowError)


def argument_error(error: Exception, name: str) -> ArgumentError | None:
    """What an error becomes that nobody planned while a public function looked at its arguments.

    The functions users call check what they can expect to go wrong. Anything else, such as a string
    where an axis belongs, fails somewhere in the code that takes arguments apart; the user gets the
    same three parts then: the cause as Python words it, the line, a remedy.

    Args:
        error: caught at the boundary of a public function.
        name: the function's name for users.

    Returns:
        None when the error was raised on purpose, by the user's own code, or in the compiler or the
        runtime, where it is a defect of trnx that no change of arguments repairs.
    """
    traceback = error.__traceback__
    if isinstance(error, TrnxError) or not isinstance(error, _UNPLANNED) or " (at " in str(error):
        return None
    if traceback is None or traceback.tb_next is None:  # arguments that do not fit the signature
        return None
    last = ""  # of trnx's own files, the one that was running
    for frame, _ in walk_tb(traceback.tb_next):
        file = frame.f_code.co_filename
        if is_own_file(file):
            last = file
        elif not is_library_file(file):
            return None
    if not takes_arguments(last):
        return None
    text = str(error).rstrip(".") or type(error).__name__
    cause = f"{name} cannot use its arguments: {text[0].lower()}{text[1:]}"
    return ArgumentError(message(cause, None, f"See help({name}) for what it takes"))


def public_name(function: Callable[..., object]) -> str:
    """The name users know a function by: ``trnx.numpy.sum``, ``trnx.grad``."""
    module = function.__module__
    name = function.__qualname__.partition(".<locals>")[0].lstrip("_")
    for face in ("trnx.numpy.linalg", "trnx.numpy", "trnx.nn", "trnx.random"):
        if module == face or module.startswith(face + "."):
            return f"{face}.{name}"
    if module.startswith("trnx.core"):
        return f"trnx.numpy.{name}"
    return f"trnx.lax.{name}" if module.startswith(("trnx.ops", "trnx.control")) else f"trnx.{name}"


def user_traceback(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a public entry point: errors that pass through it show only the user's frames.

    ``TRNX_TRACEBACK_FILTER=0`` (option `traceback_filter`) keeps every frame. Errors that nobody
    planned get their three parts (`argument_error`).
    """

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            explained = argument_error(error, public_name(function))
            if explained is not None:
                raise explained from error
            hide_internal_frames(error)
            raise

    return wrapper
