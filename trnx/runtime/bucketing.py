"""Run a program of symbolic sizes: pad it to a bucket, compile that once, run any size inside it.

A :class:`Family` holds the executables of one program, one per bucket. A call copies its inputs
into buffers of the bucket's sizes (or lends them as they are, when the memory behind them is long
enough), passes the true sizes as int32 scalars and cuts the results back to their true shapes. What
is in the padding is never set: the padded program does not let it reach a valid element.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from trnx.core import config, dtypes
from trnx.core.avals import Aval, static_size
from trnx.core.program import Program, dim_variables
from trnx.core.source import current_source
from trnx.runtime import explain
from trnx.runtime.array import Array, ArrayType, array_type, donate, make_array
from trnx.runtime.buckets import Buckets
from trnx.runtime.convert import scalar_array
from trnx.runtime.devices import Device
from trnx.runtime.executable import Executable
from trnx.runtime.memory import Block, allocate, copy_bytes, numpy_view
from trnx.runtime.programs import executable_for
from trnx.runtime.sized import SizedPlan, SizedProgram
from trnx.transforms.inline import inline_calls
from trnx.transforms.pad import Padded, pad_program
from trnx.transforms.specialise import specialise

_PLAN_LIMIT = 4096  # plans of a family that are kept: one per combination of true shapes


@dataclass(frozen=True, slots=True)
class _Window:
    """An array inside a larger buffer: how to put it in, or take it out.

    Attributes:
        kind: type of the array.
        buffer: type of the buffer.
        nbytes: bytes of the array when only its first axis is shorter, so that it lies dense at
            the start of the buffer; else -1.
        buffer_nbytes: bytes of the buffer.
    """

    kind: ArrayType
    buffer: ArrayType
    nbytes: int
    buffer_nbytes: int

    def widen(self, array: Array) -> Array:
        """A buffer that holds `array`; the rest of it is garbage."""
        address, owner = array._address, array._owner
        fill = config.pad_fill.value
        if fill:
            return self._copied(array, fill)
        if self.nbytes >= 0:
            end = address + self.buffer_nbytes
            if type(owner) is Block and end <= owner.address + owner.capacity:
                return make_array(address, self.buffer, owner)
            block = allocate(self.buffer_nbytes)
            copy_bytes(block.address, address, self.nbytes)
            return make_array(block.address, self.buffer, block)
        return self._copied(array, "")

    def _copied(self, array: Array, fill: str) -> Array:
        block = allocate(self.buffer_nbytes)
        view = _view(block, block.address, self.buffer, read_only=False)
        if fill:
            view[...] = fill_value(fill, view.dtype)
        view[_corner(self.kind)] = array._view()
        return make_array(block.address, self.buffer, block)

    def cut(self, result: Array) -> Array:
        """The array that `result`, a buffer, holds."""
        owner, address = result._owner, result._address
        if self.nbytes >= 0:
            return make_array(address, self.kind, owner)
        block = allocate(static_size(self.kind.aval.shape) * self.kind.aval.dtype.itemsize)
        source = _view(owner, address, self.buffer, read_only=True)[_corner(self.kind)]
        np.copyto(_view(block, block.address, self.kind, read_only=False), source)
        return make_array(block.address, self.kind, block)


def _view(owner: Any, address: int, kind: ArrayType, read_only: bool) -> np.ndarray[Any, Any]:
    shape: tuple[int, ...] = kind.aval.shape  # type: ignore[assignment]
    return numpy_view(owner, address, shape, kind.aval.dtype, read_only)


def _corner(kind: ArrayType) -> tuple[slice, ...]:
    return tuple([slice(size) for size in kind.aval.shape])


def fill_value(fill: str, dtype: np.dtype[Any]) -> Any:
    """What option `pad_fill` writes into padding of a dtype."""
    if dtype == dtypes.bool_:
        return True
    if dtypes.is_integer(dtype):
        low, high = dtypes.integer_range(dtype)
        return low if fill == "inf" else high
    if fill == "nan" or dtype == dtypes.float8_e4m3fn:  # a format without infinities
        return math.nan
    return math.inf if fill == "inf" else -math.inf


def _window(true: Aval, padded: Aval, device: Device) -> _Window | None:
    """How an array of type `true` lies in a buffer; None when it is the whole buffer."""
    if true.shape == padded.shape:
        return None
    dense = len(true.shape) > 0 and true.shape[1:] == padded.shape[1:]
    nbytes = static_size(true.shape) * true.dtype.itemsize
    return _Window(
        array_type(true, device),
        array_type(padded.with_dtype(true.dtype, true.weak), device),
        nbytes if dense or nbytes == 0 else -1,
        static_size(padded.shape) * padded.dtype.itemsize,
    )


class Plan:
    """A call of a family for given true shapes; stands in for an Executable of those shapes.

    Attributes:
        device: where it runs.
        executable: the bucket's executable.
    """

    __slots__ = ("device", "executable", "_ins", "_outs", "_sizes")

    def __init__(
        self,
        executable: Executable,
        ins: Sequence[_Window | None],
        outs: Sequence[_Window | None],
        sizes: Sequence[Array],
    ) -> None:
        self.executable = executable
        self.device = executable.device
        self._ins = tuple(ins)
        self._outs = tuple(outs)
        self._sizes = tuple(sizes)

    def __call__(
        self, inputs: Sequence[Array], registers: Sequence[int] = (), donated: Sequence[int] = ()
    ) -> list[Array]:
        """Run on arrays of the true shapes; the arguments are those of an Executable."""
        buffers = [
            array if window is None else window.widen(array)
            for array, window in zip(inputs, self._ins, strict=True)
        ]
        for position in donated:
            # A buffer that shares the array's memory is given away by the executable itself.
            array = inputs[position]
            if buffers[position] is not array and not array.is_donated():
                donate(array)
        results = self.executable([*buffers, *self._sizes], registers, donated)
        return [
            result if window is None else window.cut(result)
            for result, window in zip(results, self._outs, strict=True)
        ]


class Family:
    """The executables of one program of symbolic sizes on one device, one per bucket.

    Args:
        program: what to run.
        buckets: policy per size name.
        device: where it runs.
        donated: positions of inputs whose memory results may take.
        kind: see :class:`trnx.runtime.programs.CompileEvent`.
        title: name and place of the function, for explanations.
        sized: compiled for all sizes at once; runs every call without an empty axis.

    Attributes:
        program: as given.
        variables: named sizes of the program, sorted by name.
        members: executables by bucket, in the order of `variables`.
    """

    def __init__(
        self,
        program: Program,
        buckets: Buckets,
        device: Device,
        donated: Sequence[int] = (),
        kind: str = "jit",
        title: str = "",
        sized: SizedProgram | None = None,
    ) -> None:
        self.program = program
        self.sized = sized
        self.variables = dim_variables(inline_calls(program))
        self.members: dict[tuple[int, ...], Executable] = {}
        self._padded: dict[tuple[int, ...], Padded] = {}
        self._buckets = buckets
        self._device = device
        self._donated = tuple(donated)
        self._kind = kind
        self._title = title or program.name
        self._plans: dict[tuple[int, ...], Plan | SizedPlan] = {}

    def bucket(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """The bucket of each name for these true sizes."""
        return tuple([self._buckets.bucket(v, sizes[v.name]) for v in self.variables])

    def padded(self, sizes: Mapping[str, int]) -> Padded:
        """The program in the buffers of the bucket for these true sizes."""
        bucket = self.bucket(sizes)
        found = self._padded.get(bucket)
        if found is None:
            limits = {v.name: limit for v, limit in zip(self.variables, bucket, strict=True)}
            found = self._padded[bucket] = pad_program(self.program, limits)
        return found

    def member(self, sizes: Mapping[str, int]) -> Executable:
        """The executable for these true sizes, compiled when its bucket is new."""
        bucket = self.bucket(sizes)
        found = self.members.get(bucket)
        if found is None:
            if explain.wanted():
                self._explain(sizes, bucket)
            program = self.padded(sizes).program
            found = executable_for(program, self._device, self._donated, self._kind)
            self.members[bucket] = found
        return found

    def _explain(self, sizes: Mapping[str, int], bucket: tuple[int, ...]) -> None:
        names = [v.name for v in self.variables]
        limits = dict(zip(names, bucket, strict=True))
        explain.report(
            explain.NewBucket(
                self._title,
                current_source(),
                tuple((n, sizes[n], limits[n], str(self._buckets.policy(n))) for n in names),
                tuple(tuple(zip(names, known, strict=True)) for known in self.members),
            )
        )

    def plan(self, sizes: Mapping[str, int]) -> Plan | SizedPlan:
        """How to run for these true sizes."""
        key = tuple([sizes[v.name] for v in self.variables])
        found = self._plans.get(key)
        if found is None:
            found = self._new_plan(sizes)
            if len(self._plans) >= _PLAN_LIMIT:
                self._plans.clear()
            self._plans[key] = found
        return found

    def _new_plan(self, sizes: Mapping[str, int]) -> Plan | SizedPlan:
        if self.sized is not None and 0 not in sizes.values():
            return self.sized.plan(sizes)
        if 0 in sizes.values():  # some operations refuse empty arrays: let their type rules see it
            specialise(inline_calls(self.program), {v.name: sizes[v.name] for v in self.variables})
        padded, device = self.padded(sizes), self._device
        outs = [
            _window(aval.with_shape(shape), buffer, device)
            for aval, shape, buffer in zip(
                self.program.out_avals,
                padded.out_shapes(sizes),
                padded.program.out_avals,
                strict=True,
            )
        ]
        return Plan(self.member(sizes), self._in_windows(sizes), outs, self._scalars(sizes))

    def _in_windows(self, sizes: Mapping[str, int]) -> list[_Window | None]:
        padded = self.padded(sizes)
        count = len(self.program.inputs)
        return [
            _window(aval.with_shape(shape), buffer, self._device)
            for aval, shape, buffer in zip(
                self.program.in_avals,
                padded.in_shapes(sizes),
                padded.program.in_avals[:count],
                strict=True,
            )
        ]

    def _scalars(self, sizes: Mapping[str, int]) -> list[Array]:
        names = self.padded(sizes).size_names
        return [scalar_array(sizes[name], dtypes.int32, self._device) for name in names]

    def buffers(self, sizes: Mapping[str, int], arrays: Sequence[Array]) -> list[Array]:
        """The inputs of the padded program for arrays of these true sizes."""
        windows = self._in_windows(sizes)
        buffers = [
            array if window is None else window.widen(array)
            for array, window in zip(arrays, windows, strict=True)
        ]
        return [*buffers, *self._scalars(sizes)]


_families: WeakKeyDictionary[Program, dict[Any, Family]] = WeakKeyDictionary()


def run_symbolic(
    program: Program,
    sizes: Mapping[str, int],
    buckets: Buckets,
    arrays: Sequence[Array],
    device: Device,
) -> list[Array]:
    """Run a `call` of a program of symbolic sizes; its family lives as long as the program.

    Args:
        program: a program that a transform of a dynamic function made.
        sizes: the true sizes; names that the program does not use are ignored.
        buckets: the policies of the dynamic function.
        arrays: inputs of true shapes.
        device: where to run.
    """
    known = _families.setdefault(program, {})
    place = (buckets, device.kind, device.target)
    family = known.get(place)
    if family is None:
        family = known[place] = Family(program, buckets, device, kind="call")
    return family.plan(sizes)(arrays)
