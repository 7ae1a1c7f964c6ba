"""Device kernels of reductions over collapsed kept and reduced dimensions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import trnx.numpy as np
from trnx_torch import registration
from trnx_torch.eager.generic import build, place, sizes, strides, supported
from trnx_torch.registration import Kernel, KernelRequest

Value = Any
Reduce = Callable[[Value, tuple[int, ...]], Value]


def _make(reduce: Reduce) -> Callable[[KernelRequest], Kernel | None]:
    def make(request: KernelRequest) -> Kernel | None:
        if not supported(request):
            return None
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
            return reduce(operands[name], axes)

        return build(request, formula, [source], results, registers, {})

    return make


def _last(reduce: Callable[[Value, int], Value]) -> Reduce:
    """A reduction whose result is an index: one reduced dimension only."""

    def apply(x: Value, axes: tuple[int, ...]) -> Value:
        if len(axes) != 1:
            raise NotImplementedError("an index over several strided dimensions")
        return reduce(x, axes[0])

    return apply


def register() -> None:
    """Registers sums, means, extrema and arg-extrema."""
    registration.reduction("aten::sum.dim_IntList", "aten::sum", outputs=["sum"])(_make(np.sum))
    registration.reduction("aten::mean.dim", "aten::mean", outputs=["float"])(_make(np.mean))
    registration.reduction("aten::amax")(_make(np.max))
    registration.reduction("aten::amin")(_make(np.min))
    for name, fn in (("argmax", np.argmax), ("argmin", np.argmin)):
        registration.reduction(f"aten::{name}", outputs=["int64"], ordered=True)(_make(_last(fn)))
