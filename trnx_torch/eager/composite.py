"""Operators built from other operators of the device, run in Python once per signature.

`define` registers such a function for an operator's functional, out= and in-place overloads; the
extension records what it launches (`registration.program`). `decompose` takes PyTorch's own
decomposition as the function.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from trnx_torch import registration
from trnx_torch.eager.generic import NOT_NATIVE
from trnx_torch.eager.overloads import forms, is_built_of_others, schema

Function = Callable[..., Any]

DEFINED: set[str] = set()
"""Full names of the operators that have such a function."""


def define(
    *ops: str, forms_of: bool = True, every_dtype: bool = False
) -> Callable[[Function], Function]:
    """Register a function for functional overloads ("roll.default") and the forms of each.

    Args:
        ops: ATen overloads; those this PyTorch does not have are left out.
        forms_of: register in-place and out= overloads, too.
        every_dtype: the function only moves data, so float64 and complex operands are welcome;
            other functions leave them to torch's CPU kernel.
    """

    def register(function: Function) -> Function:
        for op in ops:
            for form in forms(op) if forms_of else [op.removesuffix(".default")]:
                name = f"aten::{form}"
                if name in DEFINED or schema(form) is None or is_built_of_others(name):
                    continue
                DEFINED.add(name)
                writing = _writing(form, function)
                registration.program(name)(writing if every_dtype else _computing(writing))
        return function

    return register


def _writing(form: str, function: Function) -> Function:
    """``function`` for an overload that writes its results into arguments; else itself."""
    found = schema(form)
    assert found is not None
    outs = [a.name for a in found.arguments if a.is_out]
    if outs:

        def into(*args: Any, **kwargs: Any) -> Any:
            targets = [kwargs.pop(name) for name in outs]
            results = function(*args, **kwargs)
            values = [results] if isinstance(results, Tensor) else list(results)
            for target, value in zip(targets, values, strict=True):
                write(target, value)
            return targets[0] if len(targets) == 1 else tuple(targets)

        return into
    first = found.arguments[0]
    if first.alias_info is not None and first.alias_info.is_write:

        def in_place(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
            return self.copy_(function(self, *args, **kwargs))

        return in_place
    return function


def write(target: Tensor, value: Tensor) -> None:
    """Put a result into an ``out=`` tensor, resized to its shape.

    Raises:
        RuntimeError: PyTorch's rules do not let the result's dtype become the target's.
    """
    if not torch.can_cast(value.dtype, target.dtype):
        raise RuntimeError(
            f"result type {value.dtype} can't be cast to the desired output type {target.dtype}"
        )
    if target.shape != value.shape:
        target.resize_(value.shape)
    target.copy_(value)


def decomposition(op: str) -> Function | None:
    """PyTorch's decomposition of an overload, None if it has none."""
    from torch._decomp import decomposition_table

    base, _, overload = op.partition(".")
    packet = getattr(torch.ops.aten, base, None)
    if packet is None or (overload or "default") not in packet.overloads():
        return None
    found: Function | None = decomposition_table.get(getattr(packet, overload or "default"))
    return found


def decompose(*ops: str) -> None:
    """Register PyTorch's decomposition for each of ``ops`` that has one and no function yet."""
    for op in ops:
        function = decomposition(op)
        if function is not None:
            define(op)(function)


def _computing(function: Function) -> Function:
    """``function`` for dtypes that device kernels compute with."""

    def checked(*args: Any, **kwargs: Any) -> Any:
        for value in (*args, *kwargs.values()):
            for item in value if isinstance(value, list | tuple) else (value,):
                if isinstance(item, Tensor) and item.dtype in NOT_NATIVE:
                    raise registration.NoKernel(str(item.dtype))
                if isinstance(item, torch.dtype) and item in NOT_NATIVE:
                    raise registration.NoKernel(str(item))
        return function(*args, **kwargs)

    return checked


def axes(dim: int | Sequence[int] | None, rank: int) -> list[int]:
    """``dim`` as a list of axes from 0; None and an empty list mean all of them."""
    if dim is None or (not isinstance(dim, int) and len(dim) == 0):
        return list(range(rank))
    given = [dim] if isinstance(dim, int) else list(dim)
    for d in given:
        if not -max(rank, 1) <= d < max(rank, 1):
            raise IndexError(
                "Dimension out of range (expected to be in range of "
                f"[{-max(rank, 1)}, {max(rank, 1) - 1}], but got {d})"
            )
    return [d % rank for d in given] if rank else []
