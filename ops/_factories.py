"""Families of primitives: one call declares an elementwise, compare or reduce primitive completely.

A factory fills type rule, reference, vmap, pad, cost, the transpose reason and the test record, so
that a declaration only says what is special about the operation: its name, its meaning in NumPy and
its derivative.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from trnx.core import (
    Aval,
    Cost,
    DTypeError,
    OpCase,
    Primitive,
    ShapeError,
    Size,
    TestRecord,
    aval_of,
    dtypes,
    message,
    same_shape,
)
from trnx.core.dtypes import bfloat16, bool_, float16, float32, float64
from trnx.ops import functions as op

NumpyArray = np.ndarray[Any, np.dtype[Any]]
DTypes = tuple[np.dtype[Any], ...]

# float8 is for storage: it is cast before arithmetic, as on the hardware.
FLOAT: DTypes = (float32, float64, bfloat16, float16)
COMPLEX: DTypes = dtypes.COMPLEXES
SIGNED: DTypes = dtypes.SIGNED
UNSIGNED: DTypes = dtypes.UNSIGNED
INTEGER: DTypes = SIGNED + UNSIGNED
BOOL: DTypes = (bool_,)
REAL: DTypes = FLOAT + INTEGER
NUMBER: DTypes = REAL + COMPLEX
ANY: DTypes = dtypes.ALL_DTYPES

_LOW_PRECISION = (bfloat16, float16)
_KIND_NAMES = (
    (FLOAT, "float"),
    (COMPLEX, "complex"),
    (SIGNED, "signed integer"),
    (UNSIGNED, "unsigned integer"),
    (BOOL, "bool"),
)

NOT_LINEAR = "it is not linear; reverse mode transposes its tangent"
NO_DERIVATIVE = "its result carries no derivative"


# ---------------------------------------------------------------- type rules
def kinds_text(accepts: DTypes) -> str:
    """``float, signed integer``: the kinds of dtypes in a set, for error texts."""
    return ", ".join(name for group, name in _KIND_NAMES if set(group) & set(accepts))


def check_dtypes(name: str, avals: Sequence[Aval], accepts: DTypes) -> np.dtype[Any]:
    """The common dtype of the operands.

    Raises:
        DTypeError: the dtypes differ or are not accepted.
    """
    dtype = avals[0].dtype
    for aval in avals[1:]:
        if aval.dtype != dtype:
            raise DTypeError(
                message(
                    f"{name} needs operands of one dtype but got {join_avals(avals)}",
                    None,
                    "Cast with astype first",
                )
            )
    if dtype not in accepts:
        raise DTypeError(
            message(
                f"{name} takes {kinds_text(accepts)} operands but got {join_avals(avals)}",
                None,
                "Cast with astype first",
            )
        )
    return dtype


def join_avals(avals: Sequence[Aval]) -> str:
    """``f32[2,3] and f32[4,5]``."""
    return " and ".join(map(str, avals))


def check_axis(name: str, aval: Aval, axis: int, extra: int = 0) -> None:
    """Raise ShapeError unless ``0 <= axis < aval.ndim + extra``."""
    if not 0 <= axis < aval.ndim + extra:
        raise ShapeError(
            message(
                f"{name} got axis {axis} for {aval}",
                None,
                f"Use an axis from 0 to {aval.ndim + extra - 1}",
            )
        )


def elementwise_shape(name: str, avals: Sequence[Aval]) -> tuple[Size, ...]:
    """The common shape: all operands have it or no axes.

    Raises:
        ShapeError: two operands with axes differ in shape.
    """
    shape: tuple[Size, ...] = ()
    for aval in avals:
        if aval.shape:
            if shape and not same_shape(shape, aval.shape):
                raise ShapeError(
                    message(
                        f"{name} needs operands of one shape but got {join_avals(avals)}",
                        None,
                        "Broadcast them first, or use trnx.numpy, which does",
                    )
                )
            shape = aval.shape
    return shape


def elementwise_abstract(
    name: str, accepts: DTypes, result: np.dtype[Any] | None = None
) -> Callable[..., Aval]:
    """The type rule of an elementwise primitive: equal dtypes, equal shapes or no axes."""

    def abstract(*avals: Aval, **params: Any) -> Aval:
        dtype = check_dtypes(name, avals, accepts)
        shape = elementwise_shape(name, avals)
        weak = result is None and all(aval.weak for aval in avals)
        return Aval(shape, dtype if result is None else result, weak)

    return abstract


# ---------------------------------------------------------------- NumPy references
def quiet(function: Callable[..., Any]) -> Callable[..., NumpyArray]:
    """A reference that reports no floating-point warnings and always gives an array."""

    def reference(*arrays: NumpyArray, **params: Any) -> NumpyArray:
        with np.errstate(all="ignore"):
            return np.asarray(function(*arrays, **params))

    return reference


def wide(function: Callable[..., Any]) -> Callable[..., NumpyArray]:
    """A reference computed in double precision and rounded once."""

    def reference(*arrays: NumpyArray, **params: Any) -> NumpyArray:
        dtype = np.asarray(arrays[0]).dtype
        if dtype in (float32, *_LOW_PRECISION):
            arrays = tuple(np.asarray(x).astype(float64) for x in arrays)
        elif dtype == dtypes.complex64:
            arrays = tuple(np.asarray(x).astype(dtypes.complex128) for x in arrays)
        with np.errstate(all="ignore"):
            return np.asarray(function(*arrays, **params)).astype(dtype)

    return reference


# ---------------------------------------------------------------- vmap
def vmap_elementwise(primitive: Primitive) -> Callable[..., Any]:
    """The vmap rule of an elementwise primitive: line the mapped axes up and apply it once.

    An operand without axes of its own that is mapped, or one with axes that is not, is broadcast;
    an unmapped scalar stays a scalar.
    """

    def rule(
        ctx: Any, args: Sequence[Any], dims: Sequence[int | None], size: Size, **params: Any
    ) -> tuple[Any, Any]:
        avals = [aval_of(x) for x in args]
        ranks = [aval.ndim - (dim is not None) for aval, dim in zip(avals, dims, strict=True)]
        rank = max(ranks)
        at = next((d for d, r in zip(dims, ranks, strict=True) if d is not None and r == rank), 0)
        assert at is not None
        shape: tuple[Size, ...] = ()
        for aval, dim, r in zip(avals, dims, ranks, strict=True):
            if r == rank:
                own = [s for i, s in enumerate(aval.shape) if i != dim]
                shape = (*own[:at], size, *own[at:])
        operands = []
        for x, dim, r in zip(args, dims, ranks, strict=True):
            if dim is None:
                if r:
                    x = op.broadcast(x, shape, [i for i in range(rank + 1) if i != at])
            elif r == rank:
                x = op.moveaxis(x, dim, at)
            else:
                x = op.broadcast(x, shape, (at,))
            operands.append(x)
        results = primitive.bind(*operands, **params)
        if primitive.multiple_results:
            return results, [at] * len(results)
        return results, at

    return rule


elementwise_primitives: set[str] = set()
"""Names of the primitives that compute each element from the elements at its place."""


def pad_elementwise(primitive: Primitive) -> Callable[..., Any]:
    """The pad rule of an elementwise primitive: garbage stays where it is."""
    elementwise_primitives.add(primitive.name)

    def rule(ctx: Any, args: Sequence[Any], true_shapes: Any, **params: Any) -> Any:
        return primitive.bind(*args, **params)

    return rule


# ---------------------------------------------------------------- derivatives
def def_bilinear_jvp(primitive: Primitive) -> None:
    """Enter the jvp of a product: the product with either operand replaced by its tangent."""

    def left(t: Any, lhs: Any, rhs: Any, *, out: Any, **params: Any) -> Any:
        return primitive.bind(t, rhs, **params)

    def right(t: Any, lhs: Any, rhs: Any, *, out: Any, **params: Any) -> Any:
        return primitive.bind(lhs, t, **params)

    primitive.def_jvp(left, right)


# ---------------------------------------------------------------- cost
def elements(aval: Aval) -> int:
    """Number of elements of a static type."""
    return math.prod(int(size) for size in aval.shape)


def nbytes(*avals: Aval) -> int:
    """Bytes of static types together."""
    return sum(elements(aval) * aval.dtype.itemsize for aval in avals)


def movement_cost(primitive: Primitive) -> Callable[..., Cost]:
    """Cost of moving data: every operand is read and the result written once."""

    def rule(*avals: Aval, **params: Any) -> Cost:
        out = primitive.abstract(*avals, **params)
        assert isinstance(out, Aval)
        return Cost(bytes_read=nbytes(*avals), bytes_written=nbytes(out))

    return rule


def elementwise_cost(primitive: Primitive, flops: int, transcendental: bool) -> Callable[..., Cost]:
    """Cost per element of an elementwise primitive."""

    def rule(*avals: Aval, **params: Any) -> Cost:
        out = primitive.abstract(*avals, **params)
        assert isinstance(out, Aval)
        count = elements(out)
        return Cost(
            flops=flops * count,
            bytes_read=nbytes(*avals),
            bytes_written=nbytes(out),
            transcendental=count if transcendental else 0,
        )

    return rule


# ---------------------------------------------------------------- test records
EXACT: Mapping[str, float] = {}
# One rounding of the result type, twice over for an implementation that is off by an ulp.
ROUNDED: Mapping[str, float] = {"f32": 2.4e-7, "f64": 4.5e-16, "bf16": 1.6e-2, "f16": 2e-3}
# Polynomial evaluations: 2 ulp in f32 and f64 (libm), one ulp in the short types.
# Complex functions are a few of those, multiplied.
FUNCTION: Mapping[str, float] = {
    "f32": 4.8e-7, "f64": 1e-15, "bf16": 1.6e-2, "f16": 2e-3, "c64": 2e-6, "c128": 6e-15,
}  # fmt: skip

_SHAPES: tuple[tuple[int, ...], ...] = ((), (5,), (3, 4), (131, 7), (0, 4))


def file_of(depth: int) -> str:
    """``ops/elementwise.py``: the file of the caller `depth` frames up, for RuleError texts."""
    parts = sys._getframe(depth + 1).f_code.co_filename.replace("\\", "/").split("/")
    return "/".join(parts[-2:])


def elementwise(
    name: str,
    doc: str,
    arity: int,
    *,
    accepts: DTypes,
    reference: Callable[..., Any],
    result: np.dtype[Any] | None = None,
    ranges: tuple[tuple[float, float] | None, ...] | None = None,
    tolerance: Mapping[str, float] = EXACT,
    grad_order: int = 0,
    flops: int = 1,
    transcendental: bool = False,
    params: Sequence[Mapping[str, Any]] = ({},),
    skips: Mapping[str, str] | None = None,
    linear: bool = False,
    depth: int = 1,
) -> Primitive:
    """Declare an elementwise primitive.

    Args:
        name: primitive name.
        doc: what it computes, one sentence.
        arity: number of operands.
        accepts: dtypes it takes.
        reference: NumPy meaning, given arrays of one of these dtypes.
        result: dtype of the result when it is not that of the operands.
        ranges: value range of each operand in tests (where the function is smooth).
        tolerance: see `TestRecord`.
        grad_order: derivatives that tests check; 0 declares that the result carries none.
        flops: arithmetic operations per element.
        transcendental: counts as one evaluation of exp, log and the like.
        params: parameter sets that tests try.
        skips: see `TestRecord`.
        linear: in some operand, for fixed others; its transpose rule follows.
        depth: frames between the declaration and this function.
    """
    shapes: list[tuple[tuple[int, ...], ...]] = [(shape,) * arity for shape in _SHAPES]
    if arity > 1:
        full = (3, 4)
        for scalar_at in range(arity):
            shapes.append(tuple(() if i == scalar_at else full for i in range(arity)))
    cases = tuple(OpCase(shape, dict(p), ranges) for p in params for shape in shapes)
    primitive = Primitive(
        name,
        abstract=elementwise_abstract(name, accepts, result),
        doc=doc,
        reference=reference,
        tests=TestRecord(cases, accepts, tolerance, grad_order, skips or {}),
    )
    primitive.file = file_of(depth)
    primitive.def_vmap(vmap_elementwise(primitive))
    primitive.def_pad(pad_elementwise(primitive))
    primitive.def_cost(elementwise_cost(primitive, flops, transcendental))
    if grad_order == 0:
        primitive.def_jvp(None)
        primitive.not_needed["transpose"] = NO_DERIVATIVE
    elif not linear:
        primitive.not_needed["transpose"] = NOT_LINEAR
    return primitive


def unary(
    name: str,
    doc: str,
    *,
    domain: tuple[float, float] | None = None,
    depth: int = 2,
    **options: Any,
) -> Primitive:
    """Declare an elementwise primitive of one operand; see :func:`elementwise`.

    `domain` is the value range of the operand in tests.
    """
    ranges = None if domain is None else (domain,)
    return elementwise(name, doc, 1, ranges=ranges, depth=depth, **options)


def binary(name: str, doc: str, **options: Any) -> Primitive:
    """Declare an elementwise primitive of two operands; see :func:`elementwise`."""
    return elementwise(name, doc, 2, depth=2, **options)


def compare(name: str, doc: str, reference: Callable[..., Any], accepts: DTypes) -> Primitive:
    """Declare a comparison: two operands of one dtype to bool."""
    return elementwise(
        name, doc, 2, accepts=accepts, reference=quiet(reference), result=bool_, depth=2
    )


# ---------------------------------------------------------------- reductions
def normal_axes(name: str, aval: Aval, axes: tuple[int, ...]) -> None:
    """Raise ShapeError unless `axes` are sorted, unique axes of `aval`."""
    for axis in axes:
        check_axis(name, aval, axis)
    if list(axes) != sorted(set(axes)):
        raise ShapeError(
            message(f"{name} got axes {axes}", None, "Give sorted axes without repeats")
        )


def reduced_shape(aval: Aval, axes: Sequence[int]) -> tuple[Size, ...]:
    """The sizes of the axes that stay."""
    return tuple(size for axis, size in enumerate(aval.shape) if axis not in axes)


def reduce(
    name: str,
    doc: str,
    *,
    accepts: DTypes,
    reference: Callable[..., Any],
    identity: Callable[[np.dtype[Any]], Any],
    tolerance: Mapping[str, float] = EXACT,
    floor: float = 0.0,
    grad_order: int,
) -> Primitive:
    """Declare a reduction over static `axes`, which the result does not have.

    Args:
        name: primitive name.
        doc: what it computes, one sentence.
        accepts: dtypes it takes.
        reference: ``reference(x, axes=axes)`` in NumPy.
        identity: the value, for a dtype, that changes no result; padding is filled with it.
        tolerance: see `TestRecord`.
        floor: see `TestRecord`.
        grad_order: derivatives that tests check.
    """

    def abstract(x: Aval, *, axes: tuple[int, ...]) -> Aval:
        check_dtypes(name, (x,), accepts)
        normal_axes(name, x, axes)
        return Aval(reduced_shape(x, axes), x.dtype, x.weak)

    cases = tuple(
        OpCase((shape,), {"axes": axes})
        for shape, axes in [
            ((7,), (0,)),
            ((3, 5), (0,)),
            ((3, 5), (1,)),
            ((3, 5), (0, 1)),
            ((2, 3, 4), (0, 2)),
            ((2, 3, 4), (1,)),
            ((131, 9), (1,)),
            ((9, 131), (0,)),
            ((0, 4), (0,)),
            ((0, 4), (1,)),
        ]
    )
    primitive = Primitive(
        name,
        abstract=abstract,
        doc=doc,
        reference=reference,
        tests=TestRecord(cases, accepts, tolerance, grad_order, floor=floor),
    )
    primitive.file = file_of(1)

    @primitive.def_vmap
    def _vmap(
        ctx: Any, args: Sequence[Any], dims: Sequence[int], size: Size, *, axes: tuple[int, ...]
    ) -> tuple[Any, int]:
        (x,), (dim,) = args, dims
        moved = tuple(axis + (axis >= dim) for axis in axes)
        return primitive.bind(x, axes=moved), dim - sum(axis < dim for axis in axes)

    @primitive.def_pad
    def _pad(ctx: Any, args: Sequence[Any], true_shapes: Any, *, axes: tuple[int, ...]) -> Any:
        # Only the axes that are summed over matter; the others may keep their garbage.
        (x,), (shape,) = args, true_shapes
        kept = tuple(
            s if axis in axes else b
            for axis, (s, b) in enumerate(zip(shape, op.shape_of(x), strict=True))
        )
        return primitive.bind(ctx.mask(x, kept, identity(op.dtype_of(x))), axes=axes)

    @primitive.def_cost
    def _cost(x: Aval, *, axes: tuple[int, ...]) -> Cost:
        out = abstract(x, axes=axes)
        return Cost(elements(x), nbytes(x), nbytes(out))

    return primitive
