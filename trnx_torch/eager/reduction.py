"""Device kernels of reductions over collapsed kept and reduced dimensions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

import trnx.numpy as np
from trnx.ops import functions
from trnx_torch import registration
from trnx_torch.eager.generic import build, place, sizes, strides, supported
from trnx_torch.eager.overloads import forms
from trnx_torch.registration import Kernel, KernelRequest

Value = Any
Reduce = Callable[[Value, tuple[int, ...]], Value]
Formula = Callable[..., Value]


def _make(reduce: Formula) -> Callable[[KernelRequest], Kernel | None]:
    def make(request: KernelRequest) -> Kernel | None:
        if not supported(request):
            return None
        if request.outputs[0].dtype is torch.bool and request.inputs[0].dtype is torch.uint8:
            return None  # PyTorch answers in uint8
        kept, reduced = request.ranks
        kept_names = [f"k{axis}" for axis in range(kept)]
        reduced_names = [f"r{axis}" for axis in range(reduced)]
        own = strides("x0", kept + reduced)
        registers = [*kept_names, *reduced_names, *own]
        source = place(sizes([*kept_names, *reduced_names]), own, request.inputs[0].layout)
        results = []
        for number, output in enumerate(request.outputs):
            steps = strides(f"y{number}", kept)
            registers += steps
            results.append(place(sizes(kept_names), steps, output.layout))
        axes = tuple(range(kept, kept + reduced))
        name = request.inputs[0].name

        def formula(**operands: Value) -> Value:
            x = operands.pop(name)
            return reduce(x, axes, **operands)

        return build(request, formula, [source], results, registers, {})

    return make


def _last(reduce: Callable[[Value, int], Value]) -> Reduce:
    """A reduction whose result is an index: one reduced dimension only."""

    def apply(x: Value, axes: tuple[int, ...]) -> Value:
        if len(axes) != 1:
            raise NotImplementedError("an index over several strided dimensions")
        return reduce(x, axes[0])

    return apply


def _count(x: Value, axes: tuple[int, ...], dtype: Any) -> Value:
    """How many elements one result is made of, as a float."""
    size: Any = 1
    for axis in axes:
        size = size * x.shape[axis]
    return np.astype(functions.dim_size(size), dtype)


def _spread(x: Value, axes: tuple[int, ...], correction: Value) -> tuple[Value, Value]:
    """Variance and mean. No correction argument means 1, as in PyTorch."""
    mean = np.mean(x, axes, keepdims=True)
    total = np.sum(np.square(x - mean), axes)
    left = np.maximum(_count(x, axes, x.dtype) - correction, 0.0)
    return total / left, np.reshape(mean, total.shape)


def _variance(root: bool, mean: bool) -> Formula:
    def formula(x: Value, axes: tuple[int, ...], correction: Value = 1.0) -> Value:
        variance, average = _spread(x, axes, correction)
        first = np.sqrt(variance) if root else variance
        return (first, average) if mean else first

    return formula


def _extreme(value: Reduce, index: Callable[[Value, int], Value]) -> Reduce:
    """An extreme value and where it is, along one dimension."""

    def apply(x: Value, axes: tuple[int, ...]) -> Value:
        if len(axes) != 1:
            raise NotImplementedError("an index over several strided dimensions")
        return value(x, axes), index(x, axes[0])

    return apply


def _all_forms(*ops: str) -> list[str]:
    return [f"aten::{form}" for op in ops for form in forms(op)]


def register() -> None:
    """Registers sums, means, variances, extrema, arg-extrema, any and all."""

    def define(*ops: str, **options: Any) -> Callable[[Formula], object]:
        return lambda formula: registration.reduction(*_all_forms(*ops), **options)(_make(formula))

    define("sum.dim_IntList", "sum.default", outputs=["sum"], empty=0)(np.sum)
    define("mean.dim", "mean.default", outputs=["float"], empty=math.nan)(np.mean)
    define("amax.default")(np.max)
    define("amin.default")(np.min)
    for name, fn in (("argmax", np.argmax), ("argmin", np.argmin)):
        define(f"{name}.default", outputs=["int64"], ordered=True)(_last(fn))
    for name, value, index in (("max", np.max, np.argmax), ("min", np.min, np.argmin)):
        define(f"{name}.default")(value)
        define(f"{name}.dim", outputs=["same", "int64"], ordered=True)(_extreme(value, index))
    define("aminmax.default", outputs=["same", "same"])(
        lambda x, axes: (np.min(x, axes), np.max(x, axes))
    )
    for name, reduce, empty in (("any", np.any, 0), ("all", np.all, 1)):
        define(f"{name}.default", f"{name}.dim", f"{name}.dims", outputs=["bool"], empty=empty)(
            lambda x, axes, reduce=reduce: reduce(x != 0, axes)
        )
    define("count_nonzero.dim_IntList", outputs=["int64"], empty=0)(
        lambda x, axes: np.sum(np.astype(x != 0, np.int64), axes)
    )
    for root, name in ((False, "var"), (True, "std")):
        define(f"{name}.correction", outputs=["float"])(_variance(root, mean=False))
        define(f"{name}_mean.correction", outputs=["float", "float"])(_variance(root, mean=True))
