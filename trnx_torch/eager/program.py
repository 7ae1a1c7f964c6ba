"""Array code as device kernels for operators without a family of their own.

`run` traces a function over the operands' types and launches the compiled program. Sizes are named,
equal ones by one name, so that one kernel serves other shapes of the same pattern; where the
compiler needs numbers it is compiled for exact sizes. Kernels are compiled once per process and
kept on disk like all programs; `trnx.testing.count_compiles` counts them.

`from_rules` registers operators whose array code is a rule of the compile backend.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

import trnx.numpy as np
from trnx.compiler.passes.groups import Layouts
from trnx.core import (
    Aval,
    DTypeError,
    LoweringError,
    ShapeError,
    Size,
    Tracer,
    UnsupportedError,
    dim,
    evaluate,
    trace_program,
)
from trnx.core.dims import DimError
from trnx.core.errors import TraceError
from trnx.runtime.devices import default_device
from trnx.runtime.generic import generic_kernel
from trnx_torch import registration
from trnx_torch.compile.aten import RULES
from trnx_torch.compile.aten.registry import operand_dtypes
from trnx_torch.dtypes import to_torch_dtype, to_trnx_dtype
from trnx_torch.eager import composite
from trnx_torch.registration import NoKernel

Array = Any

MAX_EXACT = 512
"""Kernels for exact sizes that are kept, over all operators; the oldest goes first."""


@dataclass(frozen=True, slots=True)
class _Program:
    """A compiled kernel, the names of its sizes in register order, and the types of its results."""

    address: int
    names: tuple[str, ...]
    results: tuple[tuple[tuple[Size, ...], torch.dtype], ...]
    owner: object


_programs: dict[Any, _Program | None] = {}
_exact: dict[Any, _Program | None] = {}

# What says that a program has no kernel of this form, rather than that something is wrong.
_REFUSED = (DTypeError, LoweringError, UnsupportedError, ShapeError, DimError, TraceError)


def run(
    name: str,
    function: Callable[..., Any],
    tensors: Sequence[Tensor],
    statics: Any = (),
    sizes: Mapping[str, int] | None = None,
    exact: bool = False,
) -> list[Tensor]:
    """The results of ``function(*arrays)`` on the device.

    Args:
        name: of the program; part of the key.
        function: array code; returns an array or several. What it depends on besides the arrays'
            types is in ``statics``.
        tensors: operands on one device; made contiguous where they are not.
        statics: a hashable value.
        sizes: more sizes by name, which ``function`` gets as keywords; at least 1.
        exact: compile for these sizes only, because a run-time size has no kernel.

    Raises:
        NoKernel: the compiler has no kernel for it.
    """
    device = tensors[0].device
    operands = [t.contiguous() for t in tensors]
    dtypes = tuple(t.dtype for t in operands)
    more = dict(sizes or {})
    pattern, values = _pattern(operands)
    values.update(more)
    key = (name, statics, dtypes, pattern)
    if exact:
        _programs.setdefault(key, None)
    if key not in _programs:
        named = {size: dim(size, min=1) for size in more}
        _programs[key] = _compile(name, function, operands, pattern, named)
    program = _programs[key]
    if program is None:
        known = (name, statics, dtypes, tuple(t.shape for t in operands), tuple(more.items()))
        if known not in _exact:
            if len(_exact) >= MAX_EXACT:
                del _exact[next(iter(_exact))]
            _exact[known] = _compile(name, function, operands, None, more)
        program = _exact[known]
        if program is None:
            raise NoKernel(name)
    results = [
        torch.empty([evaluate(n, values) for n in shape], dtype=dtype, device=device)
        for shape, dtype in program.results
    ]
    if all(r.numel() for r in results):
        registration.launch(
            program.address, [*results, *operands], [values[n] for n in program.names]
        )
    elif any(r.numel() for r in results):
        raise NoKernel("one result has no elements and another has some")
    return results


def _pattern(tensors: Sequence[Tensor]) -> tuple[tuple[tuple[str | int, ...], ...], dict[str, int]]:
    """Sizes by name: equal ones share it; 0 and 1 stay numbers, since they mean more."""
    names: dict[int, str] = {}
    pattern = tuple(
        tuple(
            size if size < 2 else names.setdefault(size, f"n{len(names)}") for size in tensor.shape
        )
        for tensor in tensors
    )
    return pattern, {name: size for size, name in names.items()}


def _compile(
    name: str,
    function: Callable[..., Any],
    tensors: Sequence[Tensor],
    pattern: tuple[tuple[str | int, ...], ...] | None,
    more: Mapping[str, Size],
) -> _Program | None:
    shapes: list[tuple[Size, ...]]
    names: tuple[str, ...] = ()
    if pattern is None:
        shapes = [tuple(t.shape) for t in tensors]
    else:
        shapes = [
            tuple(dim(n, min=2) if isinstance(n, str) else n for n in shape) for shape in pattern
        ]
        named = [n for shape in pattern for n in shape if isinstance(n, str)]
        names = tuple(dict.fromkeys([*named, *more]))
        if not names:
            return None
    avals = [Aval(shape, to_trnx_dtype(t.dtype)) for shape, t in zip(shapes, tensors, strict=True)]

    def traced(*values: Tracer) -> list[Array]:
        results = function(*values, **more)
        return list(results) if isinstance(results, tuple | list) else [results]

    try:
        program = trace_program(traced, avals, name)
        results = tuple((a.shape, to_torch_dtype(a.dtype)) for a in program.out_avals)
        if any(n == 0 for shape, _ in results for n in shape):
            return _Program(0, names, results, program)
        kernel = generic_kernel(program, default_device(), Layouts({}, {}, names))
    except (*_REFUSED, NotImplementedError):
        return None
    return _Program(kernel.address, names, results, kernel)


def rule_function(name: str, exact: bool = False) -> Callable[..., Any]:
    """A function on tensors that runs the rule ``name`` of the compile backend on the device.

    Numbers, lists and dtypes among the arguments are part of the program. ``exact``: see `run`.
    """
    rule = RULES[name]

    def function(*args: Any, **kwargs: Any) -> Any:
        leaves, tree = tree_flatten((args, kwargs))
        places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        if any(leaves[i].device.type != "neuron" for i in places):
            raise NoKernel("a number as a tensor")
        statics = tuple(
            (type(leaf).__name__, leaf) for i, leaf in enumerate(leaves) if i not in set(places)
        )
        casts = None
        if rule.promotion is not None:
            casts = operand_dtypes(args, rule.promotion)
        several = False

        def traced(*arrays: Array) -> list[Array]:
            nonlocal several
            filled = list(leaves)
            for place, array in zip(places, arrays, strict=True):
                filled[place] = array if casts is None else np.astype(array, casts[0])
            given, keywords = tree_unflatten(filled, tree)
            result = rule.apply(*given, **keywords)
            several = isinstance(result, tuple | list)
            results = list(result) if several else [result]
            return results if casts is None else [np.astype(r, casts[1]) for r in results]

        results = run(name, traced, [leaves[i] for i in places], (str(tree), statics), exact=exact)
        return tuple(results) if len(results) > 1 else results[0]

    return function


def from_rules(*names: str, exact: bool = False) -> None:
    """Register operators with the compile backend's rule as their device code."""
    for name in names:
        if name in RULES:
            composite.define(name)(rule_function(name, exact))


def register() -> None:
    """Registers the operators whose device code is a rule as it stands."""
    from_rules("prod.default", "prod.dim_int", exact=True)
