"""Calls a compiled graph on tensors: addresses in, freshly allocated tensors out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule

from trnx.runtime.devices import Device
from trnx.runtime.executable import Executable
from trnx.runtime.programs import executable_for
from trnx_torch.compile.importer import (
    ImportedGraph,
    OutputLayout,
    Sizes,
    import_graph,
    symbol_inputs,
)


@dataclass(frozen=True, slots=True)
class _Result:
    """How to allocate one program output: PyTorch's sizes, strides, dtype and device."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device


def make_runner(module: GraphModule, name: str, device: Device) -> Callable[..., list[Any]]:
    """A callable for ``module``: compiled now, or, with symbolic sizes, once per sizes met."""
    symbols = symbol_inputs(module)
    if not symbols:
        return GraphRunner(import_graph(module, name, Sizes({})), device)
    return SizedRunner(module, name, device, symbols)


class SizedRunner:
    """A graph with symbolic sizes: one ``GraphRunner`` per combination of sizes, made on demand.

    Derived sizes arrive as inputs of their own; only plain symbols are needed to know all.
    """

    def __init__(
        self, module: GraphModule, name: str, device: Device, symbols: dict[int, Any]
    ) -> None:
        self._module, self._name, self._device = module, name, device
        self._symbols = symbols
        self._runners: dict[tuple[int, ...], GraphRunner] = {}

    def __call__(self, *arguments: Any) -> list[Any]:
        """Runs the graph for the sizes among ``arguments``."""
        key = tuple(int(arguments[position]) for position in self._symbols)
        runner = self._runners.get(key)
        if runner is None:
            sizes = Sizes(dict(zip(self._symbols.values(), key, strict=True)))
            graph = import_graph(self._module, self._name, sizes)
            runner = self._runners[key] = GraphRunner(graph, self._device)
        return runner(*arguments)


class GraphRunner:
    """A compiled forward or backward graph, callable on PyTorch tensors.

    Inputs whose memory is not in the order the graph was compiled for are made contiguous first
    (Dynamo guards on strides, so this is rare). Results are new tensors with the sizes and strides
    PyTorch expects; an input the graph returns is returned as is.
    """

    def __init__(self, graph: ImportedGraph, device: Device) -> None:
        self.executable: Executable = executable_for(graph.program, device)
        self._inputs = graph.inputs
        self._results = tuple(_result(layout) for layout in graph.outputs if _computed(layout))
        self._assemble = _assembler(graph.outputs)
        self._fixed = [array.address for array in self.executable.bound]

    def __call__(self, *arguments: Any) -> list[Any]:
        """Runs the graph; returns one value per graph output."""
        addresses = list(self._fixed)
        keep = []  # copies must outlive the call
        tensors = [a for a in arguments if isinstance(a, torch.Tensor)]
        for layout, tensor in zip(self._inputs, tensors, strict=True):
            if tensor.stride() != layout.stride and not _same_memory(tensor, layout.stride):
                tensor = _restride(tensor, layout.stride)
                keep.append(tensor)
            addresses.append(tensor.data_ptr())
        made = [
            torch.empty_strided(r.size, r.stride, dtype=r.dtype, device=r.device)
            for r in self._results
        ]
        self.executable.run(addresses, [t.data_ptr() for t in made])
        return self._assemble(arguments, made)


def _computed(layout: OutputLayout) -> bool:
    return layout.program is not None


def _result(layout: OutputLayout) -> _Result:
    assert layout.dtype is not None
    assert layout.device is not None
    return _Result(layout.size, layout.stride, layout.dtype, layout.device)


def _assembler(
    layouts: tuple[OutputLayout, ...],
) -> Callable[[tuple[Any, ...], list[torch.Tensor]], list[Any]]:
    def assemble(inputs: tuple[Any, ...], made: list[torch.Tensor]) -> list[Any]:
        return [
            made[o.program]
            if o.program is not None
            else inputs[o.argument]
            if o.argument is not None
            else o.value
            for o in layouts
        ]

    return assemble


def _same_memory(tensor: torch.Tensor, stride: tuple[int, ...]) -> bool:
    """Whether the strides agree on every axis that has more than one element."""
    return tensor.numel() == 0 or all(
        own == wanted
        for size, own, wanted in zip(tensor.shape, tensor.stride(), stride, strict=True)
        if size > 1
    )


def _restride(tensor: torch.Tensor, stride: tuple[int, ...]) -> torch.Tensor:
    copy = torch.empty_strided(tensor.shape, stride, dtype=tensor.dtype, device=tensor.device)
    return copy.copy_(tensor)
