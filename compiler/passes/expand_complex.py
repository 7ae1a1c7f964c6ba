"""Complex numbers as pairs: every complex operation in terms of real and imaginary parts.

A tile holds real numbers. So legalisation writes arithmetic and functions of complex values with
`real`, `imag` and `complex`, and a part of ``complex(a, b)`` is `a` or `b` at once: between the
operations nothing is left of the complex values. In memory a complex array ``[...]`` is the real
array ``[..., 2]`` that it is bit for bit; `pack` and `unpack` go between that form and the parts
at inputs, outputs, bodies of loops and host calls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from trnx.compiler.kernels.registry import has_lowering
from trnx.core import (
    Aval,
    Params,
    Primitive,
    Program,
    aval_of,
    reference_program,
    trace_program,
)
from trnx.core.dtypes import is_complex
from trnx.ops import functions as op
from trnx.ops.complex import PART, WHOLE
from trnx.ops.complex_functions import FUNCTIONS

Array = Any

PER_PART = frozenset({
    "add", "sub", "neg", "select", "stop_gradient", "broadcast", "reshape", "transpose", "slice",
    "concatenate", "pad", "reverse", "reduce_sum", "reduce_window_sum", "take", "take_along",
    "gather", "scatter_add", "scatter_add_along", "scatter", "dynamic_slice",
    "dynamic_update_slice", "cumsum",
})  # fmt: skip
"""Primitives that act on each part alone: they move elements, or add them up."""

BILINEAR = frozenset({"dot_general", "conv", "conv_input_grad", "conv_weight_grad"})
"""Contractions of two operands: four of them for complex operands, two when one is real."""


def is_involved(primitive: Primitive, avals: Sequence[Aval], params: Mapping[str, Any]) -> bool:
    """Whether an application has complex operands or results."""
    if any(is_complex(aval.dtype) for aval in avals):
        return True
    if primitive.name == "complex" or (primitive.name == "convert" and is_complex(params["dtype"])):
        return True
    if has_lowering(primitive.name) or primitive.composite is not None:
        return False
    outs = primitive.out_avals(tuple(avals), Params(params))
    return any(is_complex(aval.dtype) for aval in outs)


def expansion_of(
    primitive: Primitive, avals: Sequence[Aval], params: Mapping[str, Any]
) -> Callable[..., Any] | None:
    """Array code on the parts for an application to complex operands, None when there is none."""
    name = primitive.name
    if name in ("complex", "real", "imag"):
        return None
    if name in FUNCTIONS:
        function = FUNCTIONS[name]
        return lambda *operands, **params: function(*operands)
    if name == "convert":
        return _convert
    if name in PER_PART and not (name == "scatter" and params.get("kind") not in ("set", "add")):
        return lambda *operands, **params: _per_part(primitive, operands, params)
    if name in BILINEAR:
        return lambda *operands, **params: _bilinear(primitive, operands, params)
    if name == "cumprod":
        return _running_product
    if name == "linear_recurrence":
        return _recurrence
    return primitive.composite


def _running_product(x: Array, *, axis: int, reverse: bool) -> Array:
    """Products of the last 1, 2, 4, ... elements, doubled until they reach the first one."""
    size, step = op.shape_of(x)[axis], 1
    while step < size:
        x = op.mul(x, _earlier(x, step, axis, reverse, 1))
        step *= 2
    return x


def _recurrence(a: Array, b: Array, *, axis: int, reverse: bool) -> Array:
    """r[i] = a[i]·r[i-1] + b[i]: the steps of the last 1, 2, 4, ... elements, as one step each."""
    size, step = op.shape_of(b)[axis], 1
    while step < size:
        b = op.add(b, op.mul(a, _earlier(b, step, axis, reverse, 0)))
        a = op.mul(a, _earlier(a, step, axis, reverse, 1))
        step *= 2
    return b


def _earlier(x: Array, step: int, axis: int, reverse: bool, fill: int) -> Array:
    """The elements `step` places before, `fill` where there are none."""
    size = op.shape_of(x)[axis]
    kept = (step, size) if reverse else (0, size - step)
    low, high = [0] * len(op.shape_of(x)), [0] * len(op.shape_of(x))
    (high if reverse else low)[axis] = step
    return op.pad(op.slice_axis(x, *kept, axis), op.scalar_like(fill, x), low, high)


def _convert(x: Array, *, dtype: np.dtype[Any], weak: bool) -> Array:
    part = PART[dtype]
    return op.make_complex(op.convert(op.real(x), part), op.convert(op.imag(x), part))


def _has_parts(x: Array) -> bool:
    return is_complex(aval_of(x).dtype)


def _per_part(primitive: Primitive, operands: Sequence[Array], params: Any) -> Array:
    """The primitive on the real parts and on the imaginary parts; real operands serve both."""
    results = []
    for part in (op.real, op.imag):
        values = [part(x) if _has_parts(x) else x for x in operands]
        results.append(primitive.bind(*values, **params))
    return op.make_complex(*results)


def _bilinear(primitive: Primitive, operands: Sequence[Array], params: Any) -> Array:
    """(a + ib)(c + id) with products by the primitive."""
    inner = {k: PART.get(v, v) if isinstance(v, np.dtype) else v for k, v in params.items()}
    x, y = operands

    def product(left: Array, right: Array) -> Array:
        return primitive.bind(left, right, **inner)

    a, c = op.real(x), op.real(y)
    b = op.imag(x) if _has_parts(x) else None
    d = op.imag(y) if _has_parts(y) else None
    real = product(a, c)
    if b is None:
        return op.make_complex(real, product(a, d))
    if d is None:
        return op.make_complex(real, product(b, c))
    return op.make_complex(op.sub(real, product(b, d)), op.add(product(a, d), product(b, c)))


# ---------------------------------------------------------------- memory
def packed_aval(aval: Aval) -> Aval:
    """The real array that a complex array is in memory; other types are returned."""
    part = PART.get(aval.dtype)
    return aval if part is None else Aval((*aval.shape, 2), part)


def pack(x: Array) -> Array:
    """A complex value as the real array [..., 2]; other values are returned."""
    aval = aval_of(x)
    if not is_complex(aval.dtype):
        return x
    rank = len(aval.shape)
    return op.concatenate([op.expand(op.real(x), rank), op.expand(op.imag(x), rank)], rank)


def unpack(x: Array, aval: Aval) -> Array:
    """The complex value of type `aval` whose real array is `x`; other values are returned."""
    if not is_complex(aval.dtype):
        return x
    last = len(aval.shape)
    shape = op.shape_of(x)[:-1]
    real, imag = (op.reshape(op.slice_axis(x, index, index + 1, last), shape) for index in (0, 1))
    return op.make_complex(real, imag)


# ---------------------------------------------------------------- host calls
def _packed_call_abstract(*avals: Aval, program: Program) -> tuple[Aval, ...]:
    return tuple(packed_aval(aval) for aval in program.out_avals)


packed_call_p = Primitive(
    "packed_call",
    abstract=_packed_call_abstract,
    multiple_results=True,
    doc="A host call of a complex operation on arrays [..., 2] of parts.",
    not_needed=dict.fromkeys(
        ("jvp", "linearize", "transpose", "vmap", "pad", "cost"), "the compiler makes it"
    ),
)


@packed_call_p.def_reference
def _packed_call_reference(*arrays: np.ndarray[Any, Any], program: Program) -> list[Any]:
    """The reference of each equation on complex views of the arrays."""
    operands = [
        np.ascontiguousarray(x).view(WHOLE[x.dtype])[..., 0] if is_complex(aval.dtype) else x
        for x, aval in zip(arrays, program.in_avals, strict=True)
    ]
    results = [np.asarray(out) for out in reference_program(program, operands)]
    return [np.stack([out.real, out.imag], -1) if is_complex(out.dtype) else out for out in results]


def host_call(
    trace: Any, primitive: Primitive, operands: Sequence[Array], params: Params
) -> list[Array]:
    """Bind a complex operation that has no form in parts as a host call on packed arrays."""
    avals = [aval_of(x).strong() for x in operands]
    program = trace_program(
        lambda *args: list(primitive.bind_all(args, params)), avals, primitive.name
    )
    results = trace.record(
        packed_call_p, [pack(x) for x in operands], Params({"program": program}, "packed_call")
    )
    return [unpack(x, aval) for x, aval in zip(results, program.out_avals, strict=True)]
