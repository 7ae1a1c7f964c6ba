"""Calls a compiled graph on tensors: addresses in, freshly allocated tensors out."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch.fx import GraphModule

from trnx.runtime.devices import Device
from trnx.runtime.executable import Executable
from trnx.runtime.programs import executable_for
from trnx.runtime.stages import Lowered
from trnx_torch.compile.importer import (
    ImportedGraph,
    OutputLayout,
    Sizes,
    import_graph,
    symbol_inputs,
)


@dataclass(frozen=True, slots=True)
class _Argument:
    """A graph output that is the graph input at ``position``."""

    position: int


@dataclass(frozen=True, slots=True)
class _Tensor:
    """A graph output in output buffer or input ``index`` of the program, as PyTorch sees it."""

    role: str
    index: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    def empty(self) -> torch.Tensor:
        """A tensor to write it to."""
        return torch.empty_strided(self.size, self.stride, dtype=self.dtype, device=self.device)

    def copy_of(self, memory: torch.Tensor) -> torch.Tensor:
        """A tensor of its own with the elements that lie in the memory of another one."""
        return self.empty().copy_(memory.as_strided(self.size, self.stride))


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


_numbers = itertools.count()
_live: WeakValueDictionary[int, GraphRunner] = WeakValueDictionary()
"""Compiled graphs in order of compilation, as long as PyTorch keeps them."""


def compiled_graphs() -> list[Lowered]:
    """The programs behind the graphs that are compiled now, oldest first."""
    return [_live[number].lowered() for number in sorted(_live)]


class GraphRunner:
    """A compiled forward or backward graph, callable on PyTorch tensors.

    Inputs whose memory is not in the order the graph was compiled for are made contiguous first
    (Dynamo guards on strides, so this is rare). Results are new tensors with the sizes and strides
    PyTorch expects; an input the graph returns is returned as is. A value returned twice, as the
    output of ``tanh`` is when backward needs it, is one tensor.
    """

    def __init__(self, graph: ImportedGraph, device: Device) -> None:
        self.executable: Executable = executable_for(graph.program, device)
        self._program = graph.program
        self._inputs = graph.inputs
        self._outputs = tuple(_output(layout, self.executable) for layout in graph.outputs)
        first: dict[int, _Tensor] = {}
        for output in self._outputs:
            if isinstance(output, _Tensor) and output.role == "output":
                first.setdefault(output.index, output)
        self._made = tuple(first[k] for k in sorted(first))
        self._fixed = [array.address for array in self.executable.bound]
        _live[next(_numbers)] = self

    def __call__(self, *arguments: Any) -> list[Any]:
        """Runs the graph; returns one value per graph output."""
        addresses = list(self._fixed)
        tensors = [a for a in arguments if isinstance(a, torch.Tensor)]
        for position, (layout, tensor) in enumerate(zip(self._inputs, tensors, strict=True)):
            if tensor.stride() != layout.stride and not _same_memory(tensor, layout.stride):
                tensors[position] = tensor = _restride(tensor, layout.stride)
            addresses.append(tensor.data_ptr())
        made = [o.empty() for o in self._made]
        self.executable.run(addresses, [t.data_ptr() for t in made])
        return [self._value(output, arguments, tensors, made) for output in self._outputs]

    def _value(
        self, output: Any, arguments: tuple[Any, ...], tensors: list[Any], made: list[Any]
    ) -> Any:
        if isinstance(output, _Argument):
            return arguments[output.position]
        if not isinstance(output, _Tensor):
            return output
        if output.role == "input":
            return output.copy_of(tensors[output.index - len(self._fixed)])
        tensor, own = made[output.index], self._made[output.index]
        return (
            tensor
            if (own.size, own.stride) == (output.size, output.stride)
            else (output.copy_of(tensor))
        )

    def lowered(self) -> Lowered:
        """The graph's program with everything the compiler makes of it."""
        return Lowered(self._program, self.executable.device, (), (), lambda: self.executable)


def _output(layout: OutputLayout, executable: Executable) -> Any:
    """A ``_Tensor`` to make, an ``_Argument`` to hand on, or a constant such as ``None``."""
    if layout.argument is not None:
        return _Argument(layout.argument)
    if layout.program is None:
        return layout.value
    assert layout.dtype is not None
    assert layout.device is not None
    role, index = executable.places[layout.program]
    return _Tensor(role, index, layout.size, layout.stride, layout.dtype, layout.device)


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
