"""Comparisons of 64-bit integers by 32-bit words, where the other side is short.

Labels and indices are 64 bits wide but are compared with class numbers and sizes. A NeuronCore has
no 64-bit arithmetic; it can read an integer in memory as two words, and a short number y needs no
more: x fits 32 bits when its high word is the sign of its low word, and then the low words decide;
else the sign of the high word does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from trnx.compiler.passes.expand import maker_of
from trnx.core import Aval, Equation, Primitive, Var, aval_of
from trnx.core.dtypes import int32, int64, is_integer
from trnx.core.tracing import RecordTracer
from trnx.ops import functions as op


def _abstract(x: Aval) -> Aval:
    return x.with_dtype(int32)


HIGH_WORD: Final = Primitive(
    "high_word",
    abstract=_abstract,
    doc="The upper 32 bits of a 64-bit integer in memory; only passes make it.",
    register=False,
)

_MIRRORED: Final = {"eq": "eq", "ne": "ne", "lt": "gt", "gt": "lt", "le": "ge", "ge": "le"}
COMPARISONS: Final = frozenset(_MIRRORED)

_COMPARE: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "eq": op.eq, "ne": op.ne, "lt": op.lt, "gt": op.gt, "le": op.le, "ge": op.ge,
}  # fmt: skip
_VIEWS: Final = frozenset({"broadcast", "reshape", "transpose", "slice", "reverse"})


def by_words(name: str, x: Any, y: Any) -> Any:
    """A comparison of 64-bit integers in 32-bit operations.

    Args:
        name: the primitive's name.
        x: operand under the trace that records now.
        y: likewise.

    Returns:
        The bools, or None when neither operand is short or the other is not in memory.
    """
    if not aval_of(x).dtype == aval_of(y).dtype == int64:
        return None
    a, b = _short(x), _short(y)
    if a is not None and b is not None:
        return _COMPARE[name](a, b)
    if a is not None:
        name, x, b = _MIRRORED[name], y, a
    if b is None:
        return None
    low = _view_of_memory(x, lambda v: op.convert(v, int32))
    high = _view_of_memory(x, lambda v: HIGH_WORD.bind(v))
    if low is None or high is None:
        return None
    fits = op.eq(high, op.select(op.lt(low, 0), np.int32(-1), np.int32(0)))
    if name in ("eq", "ne"):
        equal = op.bitwise_and(fits, op.eq(low, b))
        return equal if name == "eq" else op.bitwise_not(equal)
    beyond = op.lt(high, 0) if name in ("lt", "le") else op.ge(high, 0)
    return op.select(fits, _COMPARE[name](low, b), beyond)


def _short(x: Any) -> Any:
    """The operand as int32 when its value surely is one, else None."""
    if not isinstance(x, RecordTracer):
        number = np.asarray(x)
        return number.astype(int32)[()] if number == number.astype(int32) else None
    made = maker_of(x)
    if made is None:
        return None
    if made.primitive.name == "convert":
        source = made.inputs[0].aval.dtype
        kind = np.iinfo(source) if is_integer(source) else None
        if kind is None or kind.max > np.iinfo(int32).max:
            return None
        (atom,) = made.inputs
        if not isinstance(atom, Var):
            return None
        return op.convert(RecordTracer(x._trace, atom, x.source), int32)
    return _through_view(x, made, _short)


def _view_of_memory(x: Any, word: Callable[[Any], Any]) -> Any:
    """A word of an operand that is a program's input, or a view of one; else None."""
    if not isinstance(x, RecordTracer):
        return None
    made = maker_of(x)
    if made is None:
        return word(x)
    return _through_view(x, made, lambda inner: _view_of_memory(inner, word))


def _through_view(x: RecordTracer, made: Equation, inner: Callable[[Any], Any]) -> Any:
    if made.primitive.name not in _VIEWS or not isinstance(made.inputs[0], Var):
        return None
    found = inner(RecordTracer(x._trace, made.inputs[0], x.source))
    return None if found is None else made.primitive.bind(found, **made.params)
