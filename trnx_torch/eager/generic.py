"""From a torch kernel request to a compiled shape-generic kernel.

A formula is array code over operands by argument name. It is traced once over symbolic sizes; the
strides of every operand are registers, except innermost ones that the request says are 1 or 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

import trnx.numpy as np
from trnx.compiler.passes.groups import Layouts
from trnx.compiler.tile.expr import Index, symbol
from trnx.core import Aval, DTypeError, LoweringError, Size, UnsupportedError, dim, trace_program
from trnx.runtime.devices import CPU, default_device
from trnx.runtime.generic import generic_kernel
from trnx_torch.dtypes import to_trnx_dtype
from trnx_torch.precision import warning_kernel
from trnx_torch.registration import Kernel, KernelRequest, Layout

Formula = Callable[..., Any]

NOT_NATIVE = frozenset({torch.float64, torch.complex64, torch.complex128, torch.complex32})
"""Dtypes eager kernels leave to the counted fallback: a NeuronCore has no such arithmetic."""

_COMPUTED_IN = {
    torch.bfloat16: torch.float32,
    torch.float16: torch.float32,
    torch.float64: torch.float32,
}


@dataclass(frozen=True, slots=True)
class Place:
    """How one operand lies in memory: sizes, stride registers and the innermost layout."""

    shape: tuple[Size, ...]
    strides: tuple[Index, ...]


def sizes(names: Sequence[str]) -> tuple[Size, ...]:
    """Symbolic sizes, at least 1: nothing is launched for an empty result."""
    return tuple(dim(name, min=1) for name in names)


def strides(name: str, rank: int) -> tuple[str, ...]:
    """Names of the stride registers of an operand, outermost first."""
    return tuple(f"{name}_{axis}" for axis in range(rank))


def place(shape: tuple[Size, ...], registers: Sequence[str], innermost: Layout) -> Place:
    """An operand whose strides are registers; the innermost one may be known to be 1 or 0."""
    known: list[Index] = [symbol(name) for name in registers]
    if innermost != "strided":
        known[-1] = 1 if innermost == "contiguous" else 0
    return Place(shape, tuple(known))


def supported(request: KernelRequest) -> bool:
    """Whether every dtype of the request exists on the device, or is computed in another."""
    dtypes = [request.compute, *(o.dtype for o in (*request.outputs, *request.inputs))]
    return not any(dtype in NOT_NATIVE and dtype not in _COMPUTED_IN for dtype in dtypes)


def working_dtype(compute: torch.dtype) -> torch.dtype:
    """The dtype arithmetic is done in: float32 for all floats, 16-bit ones as torch does."""
    return _COMPUTED_IN.get(compute, compute)


def build(
    request: KernelRequest,
    formula: Formula,
    inputs: Sequence[Place],
    outputs: Sequence[Place],
    registers: Sequence[str],
    keywords: Mapping[str, Any],
    as_given: frozenset[str] = frozenset(),
) -> Kernel | None:
    """Trace, compile and load a kernel.

    ``formula(**operands, **keywords)`` returns one array per output. Inputs are cast to the working
    dtype, except those named in ``as_given``; results to the outputs' dtypes.

    Returns:
        The kernel, or None when the compiler has no single kernel for it or the formula does not
        take these dtypes: torch then runs its CPU kernel and counts a fallback.
    """
    working = to_trnx_dtype(working_dtype(request.compute))
    avals = [
        Aval(p.shape, to_trnx_dtype(o.dtype)) for p, o in zip(inputs, request.inputs, strict=True)
    ]
    avals += [Aval((), to_trnx_dtype(s.dtype)) for s in request.scalars]
    names = [o.name for o in request.inputs] + [s.name for s in request.scalars]

    def run(*values: Any) -> list[Any]:
        operands = {
            name: value if name in as_given else np.astype(value, working)
            for name, value in zip(names, values, strict=True)
        }
        result = formula(**operands, **keywords)
        results = result if isinstance(result, tuple | list) else [result]
        return [
            np.astype(r, to_trnx_dtype(o.dtype))
            for r, o in zip(results, request.outputs, strict=True)
        ]

    layouts = Layouts(
        {i: p.strides for i, p in enumerate(inputs)},
        {i: p.strides for i, p in enumerate(outputs)},
        tuple(registers),
    )
    tensors = (*request.outputs, *request.inputs)
    wide = any(operand.dtype == torch.float64 for operand in tensors)
    # Buffers of float64 exist on the host target only; arithmetic on them is float32 all the same.
    device = CPU if wide else default_device()
    name = request.op.removeprefix("aten::").replace(".", "_")
    try:
        program = trace_program(run, avals, name, names)
        kernel = generic_kernel(program, device, layouts)
    except (DTypeError, LoweringError, UnsupportedError, NotImplementedError):
        return None
    made = Kernel(kernel.address, kernel)
    # What only moves values moves all 64 bits.
    moves = wide and all(o.name in as_given for o in request.inputs)
    return warning_kernel(made, request.op) if wide and not moves else made
