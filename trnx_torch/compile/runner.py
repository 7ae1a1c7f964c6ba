"""Calls a compiled graph on tensors: addresses in, freshly allocated tensors out."""

from __future__ import annotations

import itertools
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

import numpy
import torch
from torch.fx import GraphModule

from trnx.core.errors import DimError, RuleError
from trnx.core.program import dim_variables
from trnx.runtime.devices import Device
from trnx.runtime.executable import Executable
from trnx.runtime.narrow import NarrowedExecutable
from trnx.runtime.programs import executable_for
from trnx.runtime.stages import Lowered
from trnx_torch import registration
from trnx_torch.compile import artifacts
from trnx_torch.compile.errors import ExactShapesWarning
from trnx_torch.compile.importer import ImportedGraph, import_graph, placeholders_of
from trnx_torch.compile.layouts import OutputLayout
from trnx_torch.compile.metrics import GraphMetrics, compiling
from trnx_torch.compile.options import Options
from trnx_torch.compile.symbols import Symbols
from trnx_torch.dtypes import to_torch_dtype
from trnx_torch.precision import user_source

_numbers = itertools.count()
_live: WeakValueDictionary[int, Any] = WeakValueDictionary()
"""Compiled graphs in order of compilation, as long as PyTorch keeps them."""


def compiled_graphs() -> list[Lowered]:
    """The programs behind the graphs that are compiled now, oldest first."""
    runners = [_live.get(number) for number in sorted(_live)]
    return [lowered for runner in runners if runner is not None for lowered in runner.lowered()]


def keep(runner: Any) -> None:
    """List a runner among the compiled graphs while PyTorch holds it."""
    _live[next(_numbers)] = runner


@dataclass(frozen=True, slots=True)
class Context:
    """What a runner needs to compile its graph."""

    module: GraphModule
    name: str
    device: Device
    options: Options

    def record(self, graph: ImportedGraph, seconds: float) -> GraphMetrics:
        """A new record for a compile of the graph."""
        equations = len(graph.program.equations)
        return GraphMetrics(self.name, graph.nodes, equations, lowering_seconds=seconds)

    def write(self, lowered: Lowered, suffix: str = "") -> None:
        """Write the artifacts, if a directory for them is set."""
        if self.options.artifacts is not None:
            artifacts.write(self.options.artifacts, self.name + suffix, self.module, lowered)


def make_runner(
    module: GraphModule, name: str, device: Device, options: Options
) -> Callable[..., list[Any]]:
    """A callable for ``module``: compiled now, or, with symbolic sizes, once per bucket met."""
    context = Context(module, name, device, options)
    symbols = Symbols(placeholders_of(module))
    if not symbols:
        start = time.perf_counter()
        graph = import_graph(module, name, symbols)
        return GraphRunner(graph, context, time.perf_counter() - start)
    runner = SymbolicRunner(context, symbols)
    if not symbols.numbers:
        runner.runner({})  # the rules run now, so that an unsupported operator fails the compile
    return runner


class SymbolicRunner:
    """A graph with symbols: numbers among them are fixed, one inner runner per combination.

    A graph that has no one program for all sizes is compiled per size, with a warning.
    """

    def __init__(self, context: Context, symbols: Symbols) -> None:
        self._context = context
        self._symbols = symbols
        self._runners: dict[tuple[int, ...], Callable[..., list[Any]]] = {}
        keep(self)

    def __call__(self, *arguments: Any) -> list[Any]:
        """Runs the graph for the sizes and numbers among ``arguments``."""
        if not self._symbols.numbers:
            return self._runners[()](*arguments)
        values = self._symbols.values(arguments)
        numbers = {symbol: values[symbol] for symbol in self._symbols.numbers}
        return self.runner(numbers)(*arguments)

    def runner(self, numbers: dict[Any, int]) -> Callable[..., list[Any]]:
        """The runner for these values of the symbols that are numbers."""
        key = tuple(numbers.values())
        found = self._runners.get(key)
        if found is None:
            found = self._runners[key] = self._make(self._symbols.fix(numbers))
        return found

    def _make(self, symbols: Symbols) -> Callable[..., list[Any]]:
        from trnx_torch.compile.sized import SizedRunner

        context = self._context
        try:
            start = time.perf_counter()
            graph = import_graph(context.module, context.name, symbols)
            seconds = time.perf_counter() - start
            if not dim_variables(graph.program):
                return GraphRunner(graph, context, seconds)
            return SizedRunner(graph, symbols, context, seconds)
        except (DimError, RuleError) as error:
            warnings.warn(
                f"{context.name} is compiled once per size, not once per bucket: {error}",
                ExactShapesWarning,
                stacklevel=2,
            )
        self._symbols = Symbols(placeholders_of(context.module), exact=True)
        return SymbolicRunner(context, self._symbols)

    def lowered(self) -> list[Lowered]:
        """Inner runners list their own programs."""
        return []


@dataclass(frozen=True, slots=True)
class _Argument:
    """A graph output that is the graph input at ``position``."""

    position: int


@dataclass(frozen=True, slots=True)
class _Tensor:
    """A graph output in output buffer or input ``index`` of the program, as PyTorch sees it.

    ``stored`` is the dtype of the buffer, which differs from ``dtype`` for float64.
    """

    role: str
    index: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    stored: torch.dtype

    def buffer(self) -> torch.Tensor:
        """A tensor for the program to write it to."""
        return torch.empty_strided(self.size, self.stride, dtype=self.stored, device=self.device)

    def copy_of(self, memory: torch.Tensor) -> torch.Tensor:
        """A tensor of its own with the elements that lie in the memory of another one."""
        own = torch.empty_strided(self.size, self.stride, dtype=self.dtype, device=self.device)
        return own.copy_(memory.as_strided(self.size, self.stride))


@dataclass(frozen=True, slots=True)
class _Write:
    """An input to write: to output buffer ``index`` in place, or by a copy from a place."""

    input: int
    role: str
    index: int
    in_place: bool
    size: tuple[int, ...]
    stride: tuple[int, ...]


class GraphRunner:
    """A compiled forward or backward graph of fixed shapes, callable on PyTorch tensors.

    Inputs whose memory is not in the order the graph was compiled for are made contiguous first
    (Dynamo guards on strides, so this is rare). Results are new tensors with the sizes and strides
    PyTorch expects; an input the graph returns is returned as is. A value returned twice, as the
    output of ``tanh`` is when backward needs it, is one tensor. An input the graph writes to gets
    its new value in its own memory where the compiler found that nothing reads the old one later.
    """

    def __init__(self, graph: ImportedGraph, context: Context, seconds: float) -> None:
        self._context = context
        record = context.record(graph, seconds)
        donated = tuple(m.input for m in graph.mutations)
        with compiling(record):
            self.executable: Executable = executable_for(graph.program, context.device, donated)
        self._program = graph.program
        self._inputs = graph.inputs
        self._strides = tuple(layout.stride for layout in graph.inputs)
        self._positions = tuple(layout.position for layout in graph.inputs)
        self._randoms: int = graph.randoms
        self._narrow = _narrowed_inputs(self.executable, graph)
        self._fixed = [array.address for array in self.executable.bound]
        self._outputs = tuple(_output(layout, self.executable) for layout in graph.outputs)
        self._writes = self._planned_writes(graph)
        first: dict[int, _Tensor] = {}
        for output in self._outputs:
            if isinstance(output, _Tensor) and output.role == "output":
                first.setdefault(output.index, output)
        for write in self._writes:
            if write.role == "output" and write.index not in first:
                layout = graph.inputs[write.input]
                stored = _stored(self.executable, write.index)
                first[write.index] = _Tensor(
                    "output",
                    write.index,
                    write.size,
                    write.stride,
                    layout.dtype,
                    torch.device(context.device.kind, 0)
                    if context.device.kind == "neuron"
                    else torch.device("cpu"),
                    stored,
                )
        self._made = tuple(first[k] for k in sorted(first))
        self._plain = not self._writes and all(
            isinstance(o, _Tensor) and o.role == "output" and o == first[o.index]
            for o in self._outputs
        )
        keep(self)
        context.write(self._lowered())

    def _planned_writes(self, graph: ImportedGraph) -> tuple[_Write, ...]:
        """How each written input gets its new value."""
        returned = {o.index for o in self._outputs if isinstance(o, _Tensor) and o.role == "output"}
        taken: set[int] = set()
        writes = []
        for mutation in graph.mutations:
            role, index = self.executable.places[mutation.program]
            in_place = (
                role == "output"
                and index not in returned
                and index not in taken
                and self._narrow is None
                and self.executable.aliases[index] == len(self._fixed) + mutation.input
            )
            if role == "output":
                taken.add(index)
            layout = mutation.layout
            size = _original(layout.shape, layout.order)
            writes.append(_Write(mutation.input, role, index, in_place, size, layout.stride))  # type: ignore[arg-type]
        return tuple(writes)

    def __call__(self, *arguments: Any) -> list[Any]:
        """Runs the graph; returns one value per graph output."""
        addresses = list(self._fixed)
        tensors = []
        for position, stride in zip(self._positions, self._strides, strict=True):
            tensor = arguments[position]
            if tensor.stride() != stride and not _same_memory(tensor, stride):
                tensor = _restride(tensor, stride)
            tensors.append(tensor)
            addresses.append(tensor.data_ptr())
        if self._narrow is not None:
            tensors = [
                t if d is None else t.to(d) for t, d in zip(tensors, self._narrow, strict=True)
            ]
            addresses[len(self._fixed) :] = [t.data_ptr() for t in tensors]
            self.executable.warn(user_source(self.executable.name))  # type: ignore[attr-defined]
        if self._randoms:
            start = random_start(self._randoms, tensors)
            addresses.append(start.ctypes.data)
        made = [output.buffer() for output in self._made]
        places = [t.data_ptr() for t in made]
        if self._plain:
            self.executable.run(addresses, places)
            if self._narrow is None and len(made) == len(self._outputs):
                return made
            return [self._finished(made[o.index], o) for o in self._outputs]
        before = {
            number: output.copy_of(tensors[output.index - len(self._fixed)])
            for number, output in enumerate(self._outputs)
            if isinstance(output, _Tensor) and output.role == "input"
        }
        held = {}
        for write in self._writes:
            target = tensors[write.input]
            if write.in_place and target is arguments[self._positions[write.input]]:
                places[write.index] = target.data_ptr()
            elif write.role == "input":
                held[write.input] = tensors[write.index - len(self._fixed)].clone()
        self.executable.run(addresses, places)
        results = [
            before[number] if number in before else self._value(output, arguments, made)
            for number, output in enumerate(self._outputs)
        ]
        for write in self._writes:
            target = arguments[self._positions[write.input]]
            if write.role == "input":
                target.copy_(held[write.input].as_strided(write.size, write.stride))
            elif places[write.index] != target.data_ptr():
                target.copy_(made[write.index].as_strided(write.size, write.stride))
        return results

    def _value(self, output: Any, arguments: tuple[Any, ...], made: list[Any]) -> Any:
        if isinstance(output, _Argument):
            return arguments[output.position]
        if not isinstance(output, _Tensor):
            return output
        tensor, own = made[output.index], self._made[output.index]
        if (own.size, own.stride) != (output.size, output.stride):
            return output.copy_of(tensor)
        return self._finished(tensor, output)

    def _finished(self, tensor: torch.Tensor, output: _Tensor) -> torch.Tensor:
        """The tensor in the dtype PyTorch expects."""
        return tensor if output.stored == output.dtype else tensor.to(output.dtype)

    def _lowered(self) -> Lowered:
        return Lowered(self._program, self._context.device, (), (), lambda: self.executable)

    def lowered(self) -> list[Lowered]:
        """The graph's program with everything the compiler makes of it."""
        return [self._lowered()]


def random_start(count: int, tensors: list[torch.Tensor]) -> numpy.ndarray[Any, Any]:
    """The place in the device's random stream where a call begins, as words of seed and block."""
    index = next((t.device.index for t in tensors if t.device.type == "neuron"), -1)
    seed, offset = registration.reserve_random(count, device=-1 if index is None else index)
    block = offset // 4
    mask = 0xFFFFFFFF
    return numpy.array(
        [seed & mask, seed >> 32 & mask, block & mask, block >> 32 & mask], numpy.uint32
    )


def _narrowed_inputs(
    executable: Executable, graph: ImportedGraph
) -> tuple[torch.dtype | None, ...] | None:
    """Per tensor input the dtype to convert to; None when nothing is narrowed."""
    if not isinstance(executable, NarrowedExecutable):
        return None
    stored = executable.input_dtypes[: len(graph.inputs)]
    return tuple(
        None if to_torch_dtype(dtype) == layout.dtype else to_torch_dtype(dtype)
        for dtype, layout in zip(stored, graph.inputs, strict=True)
    )


def _stored(executable: Executable, index: int) -> torch.dtype:
    place = executable.places.index(("output", index))
    return to_torch_dtype(executable.out_avals[place].dtype)


def _output(layout: OutputLayout, executable: Executable) -> Any:
    """A ``_Tensor`` to make, an ``_Argument`` to hand on, or a constant such as ``None``."""
    if layout.argument is not None:
        return _Argument(layout.argument)
    if layout.size_value is not None:
        return layout.size_value
    if layout.program is None:
        return layout.value
    assert layout.dtype is not None
    assert layout.device is not None
    role, index = executable.places[layout.program]
    stored = to_torch_dtype(executable.out_avals[layout.program].dtype)
    return _Tensor(
        role,
        index,
        layout.size,  # type: ignore[arg-type]
        layout.stride,  # type: ignore[arg-type]
        layout.dtype,
        layout.device,
        stored,
    )


def _original(shape: tuple[Any, ...], order: tuple[int, ...]) -> tuple[Any, ...]:
    """PyTorch's sizes from those in memory order."""
    sizes = [0] * len(shape)
    for place, axis in enumerate(order):
        sizes[axis] = shape[place]
    return tuple(sizes)


def _same_memory(tensor: torch.Tensor, stride: tuple[Any, ...]) -> bool:
    """Whether the strides agree on every axis that has more than one element."""
    return tensor.numel() == 0 or all(
        own == wanted
        for size, own, wanted in zip(tensor.shape, tensor.stride(), stride, strict=True)
        if size > 1
    )


def _restride(tensor: torch.Tensor, stride: tuple[Any, ...]) -> torch.Tensor:
    copy = torch.empty_strided(tensor.shape, stride, dtype=tensor.dtype, device=tensor.device)
    return copy.copy_(tensor)
