"""Operators and methods of arrays, installed on traced values and on run-time arrays alike."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from trnx.core import UnsupportedError, message
from trnx.numpy import (
    accumulation,
    contraction,
    counting,
    creation,
    elementwise,
    indexing,
    manipulation,
    reductions,
    sorting,
    updates,
)
from trnx.numpy._operands import is_operand
from trnx.numpy._public import published
from trnx.runtime.array import Array


def _binary(function: Callable[[Any, Any], Any], name: str) -> Callable[[Any, Any], Any]:
    def operator(self: Any, other: Any) -> Any:
        if type(other) is Array or is_operand(other):
            return function(self, other)
        return NotImplemented

    operator.__name__ = operator.__qualname__ = name
    operator.__doc__ = function.__doc__
    return operator


def _reflected(function: Callable[[Any, Any], Any], name: str) -> Callable[[Any, Any], Any]:
    def operator(self: Any, other: Any) -> Any:
        return function(other, self) if is_operand(other) else NotImplemented

    operator.__name__ = operator.__qualname__ = name
    operator.__doc__ = function.__doc__
    return operator


_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": elementwise.add,
    "sub": elementwise.subtract,
    "mul": elementwise.multiply,
    "truediv": elementwise.divide,
    "floordiv": elementwise.floor_divide,
    "mod": elementwise.remainder,
    "divmod": elementwise.divmod,
    "pow": elementwise.power,
    "matmul": contraction.matmul,
    "and": elementwise.bitwise_and,
    "or": elementwise.bitwise_or,
    "xor": elementwise.bitwise_xor,
    "lshift": elementwise.left_shift,
    "rshift": elementwise.right_shift,
}
_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "eq": elementwise.equal,
    "ne": elementwise.not_equal,
    "lt": elementwise.less,
    "le": elementwise.less_equal,
    "gt": elementwise.greater,
    "ge": elementwise.greater_equal,
}
_UNARY: dict[str, Callable[[Any], Any]] = {
    "neg": elementwise.negative,
    "pos": elementwise.positive,
    "abs": elementwise.absolute,
    "invert": elementwise.bitwise_invert,
}


def _round(self: Any, ndigits: int | None = None) -> Any:
    """round(x, ndigits): the nearest multiple of a power of ten, ties to even."""
    return elementwise.round(self, 0 if ndigits is None else ndigits)


def _reshape(self: Any, *shape: Any) -> Any:
    """The elements in row-major order under another shape; one size may be -1."""
    return manipulation.reshape(self, shape[0] if len(shape) == 1 else shape)


def _transpose(self: Any, *axes: Any) -> Any:
    """Axes in another order; without arguments reversed."""
    if len(axes) == 1 and (axes[0] is None or isinstance(axes[0], tuple | list)):
        return manipulation.transpose(self, axes[0])
    return manipulation.transpose(self, axes or None)


def _array_namespace(self: Any, *, api_version: str | None = None) -> Any:
    """The module of array functions, for the Array API."""
    import trnx.numpy

    return trnx.numpy


def _reduction(function: Callable[..., Any]) -> Callable[..., Any]:
    """A method that NumPy's function of the name may call, with arguments it leaves at None."""

    @functools.wraps(function)
    def method(x: Any, *args: Any, out: None = None, **kwargs: Any) -> Any:
        if out is not None:
            raise UnsupportedError(
                message(f"{function.__name__} into out=", None, "Arrays are immutable: drop out")
            )
        if kwargs.get("dtype", 0) is None:
            del kwargs["dtype"]
        return function(x, *args, **kwargs)

    return method


METHODS: dict[str, Any] = {
    "sum": _reduction(reductions.sum),
    "mean": _reduction(reductions.mean),
    "prod": _reduction(reductions.prod),
    "max": _reduction(reductions.max),
    "min": _reduction(reductions.min),
    "all": _reduction(reductions.all),
    "any": _reduction(reductions.any),
    "argmax": _reduction(reductions.argmax),
    "argmin": _reduction(reductions.argmin),
    "var": _reduction(reductions.var),
    "std": _reduction(reductions.std),
    "cumsum": _reduction(accumulation.cumsum),
    "cumprod": _reduction(accumulation.cumprod),
    "ptp": _reduction(reductions.ptp),
    "reshape": _reshape,
    "transpose": _transpose,
    "astype": creation.astype,
    "ravel": manipulation.ravel,
    "flatten": manipulation.ravel,
    "squeeze": manipulation.squeeze,
    "swapaxes": manipulation.swapaxes,
    "repeat": manipulation.repeat,
    "clip": elementwise.clip,
    "round": elementwise.round,
    "dot": contraction.dot,
    "take": indexing.take,
    "sort": sorting.sort,
    "argsort": sorting.argsort,
    "nonzero": counting.nonzero,
    "__getitem__": indexing.getitem,
    "__round__": _round,
    "__array_namespace__": _array_namespace,
    "T": property(manipulation.transpose, doc="Axes reversed."),
    "mT": property(manipulation.matrix_transpose, doc="The last two axes exchanged."),
    "at": property(updates.IndexUpdate, doc="Functional updates: x.at[index].set(values)."),
}
METHODS.update({f"__{n}__": _binary(f, f"__{n}__") for n, f in {**_BINARY, **_COMPARE}.items()})
METHODS.update({f"__r{n}__": _reflected(f, f"__r{n}__") for n, f in _BINARY.items()})
METHODS.update({f"__{n}__": f for n, f in _UNARY.items()})


def install_operators(cls: type) -> None:
    """Give a class of arrays every operator and method; its instances must be operands."""
    for name, value in METHODS.items():
        if isinstance(value, property):
            setattr(cls, name, property(published(value.fget), doc=value.__doc__))
        else:
            setattr(cls, name, published(value))
