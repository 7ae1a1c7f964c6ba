"""Graphs with symbolic sizes: compiled once per bucket, run at the true sizes.

The program is padded to the bucket (:mod:`trnx.transforms.pad`); a call hands it buffers of the
bucket's sizes and the true sizes as scalars, and cuts the results. A tensor whose first axis alone
is shorter, and whose memory goes on to the end of the buffer, is handed in as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from trnx.core import config
from trnx.core.dims import Size, evaluate
from trnx.runtime.array import Array
from trnx.runtime.bucketing import Family, fill_value
from trnx.runtime.convert import scalar_array
from trnx.runtime.executable import Executable
from trnx.runtime.narrow import NarrowedExecutable
from trnx.runtime.stages import Lowered
from trnx_torch.compile.importer import ImportedGraph
from trnx_torch.compile.layouts import InputLayout, OutputLayout
from trnx_torch.compile.metrics import GraphMetrics, compiling
from trnx_torch.compile.runner import Context, _original, keep, random_start
from trnx_torch.compile.symbols import Symbols, at
from trnx_torch.dtypes import to_torch_dtype, to_trnx_dtype
from trnx_torch.precision import user_source

_PLAN_LIMIT = 1024  # combinations of sizes whose way to run is remembered


@dataclass(frozen=True, slots=True)
class _In:
    """A tensor input at its true sizes.

    Attributes:
        position: argument of the graph.
        order: axes in memory order; None when they are in order.
        shape: true sizes in memory order.
        padded: sizes of the buffer.
        stored: dtype of the buffer.
    """

    position: int
    order: tuple[int, ...] | None
    shape: tuple[int, ...]
    padded: tuple[int, ...]
    stored: torch.dtype

    def buffer(self, tensor: torch.Tensor, fill: str) -> torch.Tensor:
        """A dense tensor of the buffer's sizes that holds the values of `tensor`."""
        if self.order is not None:
            tensor = tensor.permute(self.order)
        if tensor.dtype != self.stored:
            tensor = tensor.to(self.stored)
        if self.shape == self.padded:
            return tensor.contiguous()
        if not fill and self.shape[1:] == self.padded[1:] and tensor.is_contiguous():
            size = tensor.element_size()
            room = tensor.untyped_storage().nbytes() - tensor.storage_offset() * size
            needed = size
            for count in self.padded:
                needed *= count
            if needed <= room:
                return tensor
        made = torch.empty(self.padded, dtype=tensor.dtype, device=tensor.device)
        if fill:
            made.fill_(fill_value(fill, to_trnx_dtype(tensor.dtype)))
        _corner(made, self.shape).copy_(tensor)
        return made


@dataclass(frozen=True, slots=True)
class _Out:
    """A tensor output at its true sizes: where it lies in buffer ``index`` and what it becomes."""

    role: str
    index: int
    shape: tuple[int, ...]
    padded: tuple[int, ...]
    size: tuple[int, ...]
    stride: tuple[int, ...]
    order: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    stored: torch.dtype

    def cut(self, buffer: torch.Tensor, own: bool) -> torch.Tensor:
        """The tensor PyTorch expects; it takes over the buffer's memory if that is dense.

        Args:
            buffer: dense, of the padded sizes.
            own: nobody else holds the memory.
        """
        dense = self.shape[1:] == self.padded[1:]
        if own and dense and self.stored == self.dtype:
            result = torch.empty(0, dtype=self.dtype, device=self.device)
            return result.set_(buffer.untyped_storage(), 0, self.size, self.stride)
        made = torch.empty_strided(self.size, self.stride, dtype=self.dtype, device=self.device)
        made.permute(self.order).copy_(_corner(buffer, self.shape))
        return made


def _corner(buffer: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    return buffer.as_strided(shape, buffer.stride())


@dataclass(slots=True)
class _Plan:
    """A call for given true sizes.

    Attributes:
        executable: of the bucket.
        ins: tensor inputs.
        outs: per graph output an ``_Out``, an int (argument), or a constant in a 1-tuple.
        writes: inputs written to, with the output that holds the new value.
        buffers: per output buffer of the executable: padded sizes, dtype, device.
        scalars: the true sizes as arrays.
        randoms: 32-bit random numbers used.
    """

    executable: Executable
    ins: tuple[_In, ...]
    outs: tuple[Any, ...]
    writes: tuple[tuple[int, _Out], ...]
    buffers: tuple[tuple[tuple[int, ...], torch.dtype, torch.device], ...]
    scalars: list[Array]
    randoms: int


class SizedRunner:
    """A graph of symbolic sizes.

    Args:
        graph: its program has named sizes.
        symbols: how arguments give them.
        context: what to compile it with.
        seconds: time its import took, for the metrics.
    """

    def __init__(
        self, graph: ImportedGraph, symbols: Symbols, context: Context, seconds: float
    ) -> None:
        self._graph = graph
        self._symbols = symbols
        self._context = context
        self._seconds = seconds
        self._family = Family(
            graph.program, context.options.buckets, context.device, title=context.name
        )
        self._names = {str(symbol): symbol for symbol in symbols.sizes}
        self._plans: dict[tuple[int, ...], _Plan] = {}
        self._last: dict[str, int] = {}
        hinted = {name: _hinted(variable) for name, variable in self._variables().items()}
        self._family.padded(hinted)  # a primitive without a pad rule shows now
        keep(self)

    def _variables(self) -> dict[str, Any]:
        return {variable.name: variable for variable in self._family.variables}

    def __call__(self, *arguments: Any) -> list[Any]:
        """Runs the graph for the sizes among ``arguments``."""
        values = self._symbols.values(arguments)
        sizes = {str(symbol): value for symbol, value in values.items()}
        key = tuple(sizes.values())
        plan = self._plans.get(key)
        if plan is None:
            if len(self._plans) >= _PLAN_LIMIT:
                self._plans.clear()
            plan = self._plans[key] = self._plan(sizes)
        return self._run(plan, arguments)

    def _run(self, plan: _Plan, arguments: tuple[Any, ...]) -> list[Any]:
        fill = config.pad_fill.value
        executable = plan.executable
        tensors = [each.buffer(arguments[each.position], fill) for each in plan.ins]
        addresses = [array.address for array in executable.bound]
        addresses += [tensor.data_ptr() for tensor in tensors]
        if plan.randoms:
            start = random_start(plan.randoms, [t for t in arguments if _is_tensor(t)])
            addresses.append(start.ctypes.data)
        addresses += [array.address for array in plan.scalars]
        if isinstance(executable, NarrowedExecutable):
            executable.warn(user_source(executable.name))
        made = [
            torch.empty(shape, dtype=dtype, device=device) for shape, dtype, device in plan.buffers
        ]
        executable.run(addresses, [tensor.data_ptr() for tensor in made])
        bound = len(executable.bound)
        uses = [out.index for out in plan.outs if isinstance(out, _Out) and out.role == "output"]
        uses += [out.index for _, out in plan.writes if out.role == "output"]

        def value(out: _Out) -> torch.Tensor:
            if out.role == "input":
                return out.cut(tensors[out.index - bound], own=False)
            return out.cut(made[out.index], own=uses.count(out.index) == 1)

        results = [
            value(out)
            if isinstance(out, _Out)
            else arguments[out]
            if isinstance(out, int)
            else out[0]
            for out in plan.outs
        ]
        written = [(position, value(out)) for position, out in plan.writes]
        for position, new in written:
            arguments[position].copy_(new)
        return results

    # ---- planning
    def _plan(self, sizes: Mapping[str, int]) -> _Plan:
        family, graph = self._family, self._graph
        bucket = family.bucket(sizes)
        if bucket in family.members:
            executable = family.members[bucket]
        else:
            executable = self._compile(sizes, bucket)
        self._last = dict(sizes)
        padded = family.padded(sizes)
        count = len(graph.program.inputs)
        in_buffers = [aval.shape for aval in padded.program.in_avals[:count]]
        out_buffers = [aval.shape for aval in padded.program.out_avals]
        dtypes = self._stored_inputs(executable)
        ins = tuple(
            self._input(layout, sizes, buffer, stored)
            for layout, buffer, stored in zip(graph.inputs, in_buffers, dtypes, strict=False)
        )
        default = self._device(graph)
        outs = tuple(
            self._output(layout, sizes, executable, out_buffers, default)
            for layout in graph.outputs
        )
        writes = tuple(
            (
                mutation.layout.position,
                self._made(
                    mutation.program,
                    at(_original(mutation.layout.shape, mutation.layout.order), sizes),
                    at(mutation.layout.stride, sizes),
                    mutation.layout.order,
                    mutation.layout.dtype,
                    default,
                    executable,
                    out_buffers,
                ),
            )
            for mutation in graph.mutations
        )
        buffers: dict[int, tuple[tuple[int, ...], torch.dtype, torch.device]] = {}
        for out in (*outs, *(out for _, out in writes)):
            if isinstance(out, _Out) and out.role == "output":
                buffers.setdefault(out.index, (out.padded, out.stored, out.device))
        device = self._context.device
        return _Plan(
            executable,
            ins,
            outs,
            writes,
            tuple(buffers[index] for index in sorted(buffers)),
            [scalar_array(sizes[name], _INT32, device) for name in padded.size_names],
            int(_value(graph.randoms, sizes)),
        )

    def _compile(self, sizes: Mapping[str, int], bucket: tuple[int, ...]) -> Executable:
        names = [variable.name for variable in self._family.variables]
        record: GraphMetrics = self._context.record(self._graph, self._seconds)
        record.sizes = dict(zip(names, bucket, strict=True))
        with compiling(record):
            executable = self._family.member(sizes)
        text = "_".join(f"{name}-{size}" for name, size in record.sizes.items())
        self._context.write(self._lowered(sizes), f"_{text}")
        return executable

    def _stored_inputs(self, executable: Executable) -> list[torch.dtype]:
        if isinstance(executable, NarrowedExecutable):
            return [to_torch_dtype(dtype) for dtype in executable.input_dtypes]
        return [layout.dtype for layout in self._graph.inputs]

    def _device(self, graph: ImportedGraph) -> torch.device:
        kind = self._context.device.kind
        return torch.device("neuron", 0) if kind == "neuron" else torch.device("cpu")

    @staticmethod
    def _input(
        layout: InputLayout, sizes: Mapping[str, int], buffer: Any, stored: torch.dtype
    ) -> _In:
        natural = tuple(range(len(layout.order)))
        return _In(
            layout.position,
            None if layout.order == natural else layout.order,
            at(layout.shape, sizes),
            tuple(buffer),
            stored,
        )

    def _output(
        self,
        layout: OutputLayout,
        sizes: Mapping[str, int],
        executable: Executable,
        buffers: list[Any],
        default: torch.device,
    ) -> Any:
        if layout.argument is not None:
            return layout.argument
        if layout.size_value is not None:
            return (_value(layout.size_value, sizes),)
        if layout.program is None:
            return (layout.value,)
        assert layout.dtype is not None
        return self._made(
            layout.program,
            at(layout.size, sizes),
            at(layout.stride, sizes),
            layout.order,
            layout.dtype,
            layout.device or default,
            executable,
            buffers,
        )

    @staticmethod
    def _made(
        number: int,
        size: tuple[int, ...],
        stride: tuple[int, ...],
        order: tuple[int, ...],
        dtype: torch.dtype,
        device: torch.device,
        executable: Executable,
        buffers: list[Any],
    ) -> _Out:
        role, index = executable.places[number]
        return _Out(
            role,
            index,
            tuple(size[axis] for axis in order),
            tuple(buffers[number]),
            size,
            stride,
            order,
            dtype,
            device,
            to_torch_dtype(executable.out_avals[number].dtype),
        )

    def _lowered(self, sizes: Mapping[str, int]) -> Lowered:
        family = self._family
        return Lowered(
            family.padded(sizes).program, self._context.device, (), (), lambda: family.member(sizes)
        )

    def lowered(self) -> list[Lowered]:
        """The padded program of the bucket that was compiled last."""
        return [self._lowered(self._last)] if self._last else []


_INT32 = to_trnx_dtype(torch.int32)


def _hinted(variable: Any) -> int:
    """A size within the bounds of a name."""
    wanted = max(variable.min, 2)
    return wanted if variable.max is None else min(wanted, variable.max)


def _value(size: Size, sizes: Mapping[str, int]) -> int:
    return size if isinstance(size, int) else evaluate(size, sizes)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)
