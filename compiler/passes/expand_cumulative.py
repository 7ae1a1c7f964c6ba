"""Expansions of cumulative operations: dtypes that a kernel would not compute exactly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trnx.compiler.passes.expand import Array, Choose, _halves, _joined, expansion
from trnx.compiler.targets import Target
from trnx.core import Aval, Params, Primitive, primitives
from trnx.core.dtypes import float32, int32, is_bool, is_integer
from trnx.ops import functions as op
from trnx.ops.cumulative import previous


def _abstract(keep: Aval, x: Aval, *, axis: int, reverse: bool) -> Aval:
    return x


MAXIMUM_IN_RUNS = Primitive(
    "maximum_in_runs",
    abstract=_abstract,
    doc="r[i] = max(keep[i]·r[i-1], x[i]) of nonnegative x: a running maximum that may start anew.",
    register=False,
)


def _arithmetic(name: str) -> Choose:
    def choose(target: Target, avals: Sequence[Aval], params: Params) -> Any:
        """8- and 16-bit integers run in int32 and keep the low bits."""
        dtype = avals[0].dtype
        if not is_integer(dtype) or dtype.itemsize > 2:
            return None
        apply = primitives[name].bind
        return lambda x, **params: op.convert(apply(op.convert(x, int32), **params), dtype)

    return choose


def _extremum(name: str) -> Choose:
    def choose(target: Target, avals: Sequence[Aval], params: Params) -> Any:
        """Bools run as fp32; 32-bit integers as halves where compares are made in fp32."""
        dtype = avals[0].dtype
        apply = primitives[name].bind
        if is_bool(dtype):
            return lambda x, **params: op.convert(apply(op.convert(x, float32), **params), dtype)
        if not is_integer(dtype) or dtype.itemsize != 4 or target.native_i64:
            return None
        if name == "cummin":  # inverting the bits of an integer turns its order around
            return lambda x, **params: op.bitwise_not(op.cummax(op.bitwise_not(x), **params))
        return _cummax_by_halves

    return choose


for _name in ("cumsum", "cumprod"):
    expansion(_name)(_arithmetic(_name))
for _name in ("cummax", "cummin"):
    expansion(_name)(_extremum(_name))


def _cummax_by_halves(x: Array, axis: int, reverse: bool) -> Array:
    """The running maximum of the high halves, and within runs of it that of the low halves."""
    high, low = _halves(x)
    best = op.cummax(high, axis, reverse)
    same = op.convert(op.eq(best, previous(best, axis, reverse, -1.0)), float32)
    held = op.select(op.eq(high, best), low, 0.0)
    rest = MAXIMUM_IN_RUNS.bind(same, held, axis=axis, reverse=reverse)
    return _joined(best, rest, op.dtype_of(x))
