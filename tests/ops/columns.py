"""Columns that need no compiler: types, derivatives, transposes, vmap, composites, cost.

All run under the NumPy evaluation of table.py, so they test the rules alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import numpy as np

from tests.ops.table import Call, NumpyArray, assert_close, reference
from trnx.core import Cost, Primitive, Zero, aval_of, dtypes
from trnx.transforms.jvp import jvp_flat
from trnx.transforms.linearize import linearize_flat
from trnx.transforms.transpose import backward_pass
from trnx.transforms.vmap import vmap_flat

Function = Callable[..., Sequence[Any]]
_STEP = 1e-6
# Central differences in f64: the step squared times a third derivative, and cancellation.
_DIFFERENCE_BOUND = 2e-7
_WIDE = (dtypes.float64, dtypes.complex128)


def function_of(call: Call) -> Function:
    """The call as a function of its operands."""
    return lambda *operands: call.primitive.bind_all(operands, call.params)


def floats_of(call: Call) -> Function:
    """The call without its integer results, which have no derivative."""
    function = function_of(call)
    outs = call.primitive.out_avals(call.avals, call.params)
    kept = [dtypes.is_inexact(aval.dtype) for aval in outs]
    return lambda *operands: [
        out for out, keep in zip(function(*operands), kept, strict=True) if keep
    ]


def check_types(call: Call) -> None:
    """The type rule gives the shape and dtype that NumPy gives."""
    outs = reference(call.primitive, call.operands(), call.case.params)
    avals = call.primitive.out_avals(call.avals, call.params)
    assert len(avals) == len(outs)
    for aval, out in zip(avals, outs, strict=True):
        assert aval.shape == out.shape and aval.dtype == out.dtype, (
            str(aval),
            out.shape,
            out.dtype,
        )
        assert not aval.weak


def check_cost(call: Call) -> None:
    """The cost is whole numbers and counts every byte of the result."""
    cost = call.primitive.rule("cost")(*call.avals, **call.case.params)
    assert isinstance(cost, Cost)
    assert all(isinstance(v, int) and v >= 0 for v in (cost.flops, cost.bytes_read))
    outs = call.primitive.out_avals(call.avals, call.params)
    assert cost.bytes_written == sum(int(aval.nbytes) for aval in outs)


def check_composite(call: Call) -> None:
    """The composite, evaluated by NumPy, means what the reference means."""
    composite = call.primitive.composite
    if composite is None:
        return
    operands = call.operands()
    result = composite(*operands, **call.case.params)
    results = result if call.primitive.multiple_results else [result]
    expected = reference(call.primitive, operands, call.case.params)
    for out, want in zip(results, expected, strict=True):
        call.compare(out, want, "composite")


# ---------------------------------------------------------------- derivatives
def differentiable(call: Call) -> list[int]:
    """Operands to differentiate: the wide ones, when the results that are not integers are too."""
    outs = call.primitive.out_avals(call.avals, call.params)
    inexact = [aval.dtype for aval in outs if dtypes.is_inexact(aval.dtype)]
    if not inexact or any(dtype not in _WIDE for dtype in inexact):
        return []
    return [i for i, dtype in enumerate(call.dtypes) if dtype in _WIDE]


def _draw(rng: np.random.Generator, shape: Sequence[int], dtype: Any) -> NumpyArray:
    """Numbers in -1..1, both parts of complex ones."""
    real = rng.uniform(-1, 1, shape)
    return real + 1j * rng.uniform(-1, 1, shape) if dtype == dtypes.complex128 else real


def _directional(function: Function, which: list[int]) -> Function:
    """(operands, tangents) -> output tangents, by the jvp rules; zeros made concrete."""

    def derivative(operands: Sequence[Any], tangents: Sequence[Any]) -> list[Any]:
        given = iter(tangents)
        full = [
            next(given) if i in which else Zero(aval_of(x).strong()) for i, x in enumerate(operands)
        ]
        _, out_tangents = jvp_flat(function, operands, full)
        return [
            np.zeros(t.aval.shape, t.aval.dtype) if isinstance(t, Zero) else t for t in out_tangents
        ]

    return derivative


def _difference(
    function: Callable[[Sequence[Any]], Sequence[Any]],
    operands: Sequence[NumpyArray],
    tangents: Sequence[NumpyArray],
    which: list[int],
) -> list[NumpyArray]:
    def moved(step: float) -> list[NumpyArray]:
        given = iter(tangents)
        return [x + step * next(given) if i in which else x for i, x in enumerate(operands)]

    above, below = function(moved(_STEP)), function(moved(-_STEP))
    return [
        (np.asarray(a) - np.asarray(b)) / (2 * _STEP) for a, b in zip(above, below, strict=True)
    ]


def _tangents(call: Call, which: list[int], seed: int) -> list[NumpyArray]:
    rng = np.random.default_rng([seed, call.number])
    return [_draw(rng, call.case.shapes[i], call.dtypes[i]) for i in which]


def tangents_of(call: Call) -> list[NumpyArray]:
    """A direction per differentiable operand."""
    return _tangents(call, differentiable(call), 1)


def differences_of(call: Call, tangents: Sequence[NumpyArray]) -> list[NumpyArray]:
    """Central differences of the reference along a direction; NaN where it is infinite."""
    which, function = differentiable(call), floats_of(call)
    with np.errstate(invalid="ignore"):
        return _difference(lambda x: function(*x), call.operands(), tangents, which)


def check_jvp(call: Call) -> None:
    """First and second directional derivatives equal central differences in f64."""
    record = call.primitive.tests
    which = differentiable(call)
    if record.grad_order == 0 or not which or "jvp" in record.skips:
        return
    function, operands = floats_of(call), call.operands()
    if not all(np.isfinite(out).all() for out in function(*operands)):
        return  # the identity of an empty maximum: infinite, and constant
    t, u = _tangents(call, which, 1), _tangents(call, which, 2)
    derivative = _directional(function, which)
    first = derivative(operands, t)
    for got, want in zip(
        first, _difference(lambda x: function(*x), operands, t, which), strict=True
    ):
        assert_close(got, want, _DIFFERENCE_BOUND * 10, f"jvp of {call.name}")
    if record.grad_order < 2:
        return

    def along_t(*x: Any) -> Sequence[Any]:
        return derivative(x, t)

    second = _directional(along_t, which)(operands, u)
    for got, want in zip(
        second, _difference(lambda x: along_t(*x), operands, u, which), strict=True
    ):
        scale = max(1.0, float(np.abs(np.asarray(want)).max(initial=0.0)))
        assert_close(got, want, _DIFFERENCE_BOUND * 20 * scale, f"second jvp of {call.name}")


def check_transpose(call: Call) -> None:
    """Reverse mode is the transpose of forward mode: <ct, J t> == <J^T ct, t>, per operand.

    The product is the sum of products, of which only the real part counts: the convention of JAX,
    in which nothing is conjugated and a complex number is linear over the real ones.
    """
    record = call.primitive.tests
    which = differentiable(call)
    if record.grad_order == 0 or not which or {"jvp", "transpose"} & record.skips.keys():
        return
    function, operands = floats_of(call), call.operands()
    subsets = [[i] for i in which] + ([which] if len(which) > 1 else [])
    for chosen in subsets:
        t = _tangents(call, chosen, 3)
        out_tangents = _directional(function, chosen)(operands, t)
        nonzero = [i in chosen for i in range(len(operands))]
        result = linearize_flat(function, operands, nonzero)
        if not any(result.out_nonzero):
            assert not any(np.any(x) for x in out_tangents)
            continue
        for tangent, flag in zip(out_tangents, result.out_nonzero, strict=True):
            assert flag or not np.any(tangent)
        out_tangents = [x for x, flag in zip(out_tangents, result.out_nonzero, strict=True) if flag]
        rng = np.random.default_rng([4, call.number])
        cts = [_draw(rng, np.shape(x), np.asarray(x).dtype) for x in out_tangents]
        grads = backward_pass(result.program, (True,) * len(chosen), [None] * len(chosen), cts)
        for i, grad in zip(chosen, grads, strict=True):
            if not isinstance(grad, Zero):
                assert aval_of(grad).strong() == call.avals[i], f"cotangent type of {call.name}"
        left = sum(float(np.sum(ct * x).real) for ct, x in zip(cts, out_tangents, strict=True))
        right = sum(
            0.0 if isinstance(g, Zero) else float(np.sum(g * x).real)
            for g, x in zip(grads, t, strict=True)
        )
        assert abs(left - right) <= 1e-9 * max(1.0, abs(left)), (call.name, chosen, left, right)


# ---------------------------------------------------------------- vmap
def check_vmap(call: Call) -> None:
    """vmap over any subset of operands, at the first or the last axis, equals a loop."""
    if "vmap" in call.primitive.not_needed or not call.case.shapes:
        return
    size = 3
    count = len(call.case.shapes)
    choices = product((False, True), repeat=count) if count <= 3 else [(True,) * count]
    base = call.operands()
    for mapped in choices:
        if not any(mapped):
            continue
        for last in (False, True):
            operands, dims = [], []
            for index, flag in enumerate(mapped):
                if flag:
                    stack = [call.operands(seed)[index] for seed in range(size)]
                    axis = np.ndim(base[index]) if last else 0
                    operands.append(np.stack(stack, axis))
                    dims.append(axis)
                else:
                    operands.append(base[index])
                    dims.append(None)
            outs, out_dims = vmap_flat(function_of(call), operands, dims, size)
            loop = [_example(call, operands, dims, i) for i in range(size)]
            for k, (out, dim) in enumerate(zip(outs, out_dims, strict=True)):
                want = np.stack([results[k] for results in loop])
                got = np.moveaxis(np.asarray(out), dim, 0) if dim is not None else out
                if dim is None:
                    got = np.stack([out] * size)
                call.compare(got, want, f"vmap {dims}")


def _example(
    call: Call, operands: Sequence[NumpyArray], dims: Sequence[int | None], i: int
) -> list[Any]:
    own = [
        x if dim is None else np.asarray(np.take(x, i, dim))
        for x, dim in zip(operands, dims, strict=True)
    ]
    return reference(call.primitive, own, call.case.params)


def special_values(dtype: np.dtype[Any]) -> NumpyArray:
    """Zeros, infinities, NaN, tiny, huge and ordinary values of a float dtype."""
    tiny, huge = (3e-40, 3e38) if dtype.itemsize >= 4 else (3e-7, 6e4)
    values = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, tiny, -tiny, huge, -huge, 0.5, -2.5]
    with np.errstate(all="ignore"):
        return np.asarray(values).astype(dtype)


def check_special_values(primitive: Primitive, dtype: np.dtype[Any], params: Any) -> None:
    """The composite agrees with the reference where IEEE's special values go in."""
    assert primitive.composite is not None
    x = special_values(dtype)
    got = primitive.composite(x, **params)
    (want,) = reference(primitive, [x], params)
    bound = primitive.tests.tolerance.get(dtypes.short_name(dtype), 0.0)
    assert_close(got, want, bound, f"{primitive.name} of special values in {dtype}", floor=0.0)
