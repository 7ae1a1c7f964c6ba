"""Executables: compiled programs bound to a device, run on raw addresses.

A compiled program is a list of segments. A native segment is one C function that gets a packed
array of addresses and registers; a host segment is a counted fallback to a named host function. A
call allocates one block per output, borrows an arena for the temporaries and passes addresses on:
no array object of any library takes part.
"""

from __future__ import annotations

import ctypes
import math
import struct
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from trnx.core import config
from trnx.core.avals import Aval, static_size
from trnx.core.errors import ShapeError, TrnxError, message
from trnx.runtime.array import Array, array_type, donate, make_array
from trnx.runtime.devices import Device
from trnx.runtime.fallback import run_host_call
from trnx.runtime.memory import Block, allocate, numpy_view

_Entry = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_char_p)


class NativeError(TrnxError, RuntimeError):
    """Native code reported an error."""


class CompiledProgram(Protocol):
    """What an executable needs; `trnx.runtime.compiled.Compiled` has it."""

    @property
    def outline(self) -> Any:
        """The TileProgram; kernels and calls are not looked at."""

    @property
    def segments(self) -> Sequence[Any]:
        """Native segments (with `address`) and host segments (`function`, `ins`, `outs`)."""


@dataclass(frozen=True, slots=True)
class _OutputBuffer:
    """An output buffer: its type, its bytes, and the input whose memory it may take."""

    aval: Aval
    nbytes: int
    alias: int | None


class Executable:
    """A compiled program that can be called.

    Args:
        compiled: what the compiler made.
        device: where results live.
        out_avals: static types of the results as the user sees them, weak marks included; None
            for a program with run-time sizes, which can only be used through :meth:`run`.
        bound: arrays for the leading inputs (captured constants of the user's program).

    Attributes:
        compiled: as given.
        device: as given.
        name: name of the program.
        out_avals: types of the results.
        bound: as given.
    """

    __slots__ = (
        "bound", "compiled", "device", "name", "out_avals", "_arena_bytes", "_buffers", "_entry",
        "_order", "_pack", "_plain", "_results", "_temps", "_timed", "_types",
    )  # fmt: skip

    def __init__(
        self,
        compiled: CompiledProgram,
        device: Device,
        out_avals: Sequence[Aval] | None = None,
        bound: Sequence[Array] = (),
    ) -> None:
        tile = compiled.outline
        self.compiled = compiled
        self.device = device
        self.name: str = tile.name
        self.bound = tuple(bound)
        self.out_avals = tuple(out_avals or ())
        self._types = tuple(array_type(aval, device) for aval in self.out_avals)
        slots = {buffer.name: index for index, buffer in enumerate(tile.buffers)}
        by_kind: dict[str, list[int]] = {"input": [], "constant": [], "output": [], "temp": []}
        for index, buffer in enumerate(tile.buffers):
            by_kind[buffer.kind].append(index)
        if by_kind["constant"]:
            raise NativeError(
                f"Program {self.name} was compiled with constants of its own. "
                "Close it first with constants_to_inputs."
            )
        self._arena_bytes: int = tile.arena_bytes
        self._temps = tuple(tile.buffers[i].offset or 0 for i in by_kind["temp"])
        # `run` gathers inputs, outputs, temps; this gives their order of declaration.
        gathered = [i for indices in by_kind.values() for i in indices]
        order = sorted(range(len(gathered)), key=gathered.__getitem__)
        self._order = None if order == list(range(len(order))) else tuple(order)
        self._pack = struct.Struct(f"={len(gathered) + len(tile.registers)}q").pack
        self._entry: Any = None
        if len(compiled.segments) == 1 and hasattr(compiled.segments[0], "address"):
            self._entry = _Entry(compiled.segments[0].address)
        self._timed = config.debug.value >= 2
        self._buffers, self._results = self._plan_results(tile, slots, by_kind)
        direct = tuple(("output", k) for k in range(len(self._buffers)))
        self._plain = self._results == direct and not any(
            buffer.alias is not None for buffer in self._buffers
        )

    def _plan_results(
        self, tile: Any, slots: dict[str, int], kinds: dict[str, list[int]]
    ) -> tuple[tuple[_OutputBuffer, ...], tuple[tuple[str, int], ...]]:
        if not self.out_avals:  # a program with run-time sizes, or one without results
            return (), ()
        buffers: dict[int, _OutputBuffer] = {}
        results = []
        for name, aval in zip(tile.outputs, self.out_avals, strict=True):
            slot = slots[name]
            buffer = tile.buffers[slot]
            results.append((buffer.kind, kinds[buffer.kind].index(slot)))
            if buffer.kind == "output":
                nbytes = static_size(aval.shape) * aval.dtype.itemsize
                alias = None if buffer.alias is None else slots[buffer.alias]
                buffers[slot] = _OutputBuffer(aval, nbytes, alias)
        return tuple(buffers[slot] for slot in kinds["output"]), tuple(results)

    @property
    def places(self) -> tuple[tuple[str, int], ...]:
        """Where each result lies: ``("output", k)``, the k-th output buffer that :meth:`run` takes,
        or ``("input", k)``. Results that are the same value share a place.
        """
        return self._results

    @property
    def aliases(self) -> tuple[int | None, ...]:
        """Per output buffer the input, bound ones first, whose memory it may be written to."""
        return tuple(buffer.alias for buffer in self._buffers)

    # ---- calls
    def __call__(
        self,
        inputs: Sequence[Array],
        registers: Sequence[int] = (),
        donated: Sequence[int] = (),
    ) -> list[Array]:
        """Run on arrays.

        Args:
            inputs: one Array per input that is not bound, of the program's types, on its device.
            registers: run-time integers, if the program has some.
            donated: positions in `inputs` whose memory may become an output's. These arrays
                cannot be used afterwards, whether or not the memory could be reused.

        Returns:
            One Array per result.
        """
        if donated or not self._plain:
            return self._call_aliased(inputs, registers, donated)
        addresses = [array._address for array in inputs]
        if self.bound:
            addresses = [array._address for array in self.bound] + addresses
        blocks = [allocate(buffer.nbytes) for buffer in self._buffers]
        self.run(addresses, [block.address for block in blocks], registers)
        return [
            make_array(block.address, kind, block)
            for kind, block in zip(self._types, blocks, strict=True)
        ]

    def _call_aliased(
        self, inputs: Sequence[Array], registers: Sequence[int], donated: Sequence[int]
    ) -> list[Array]:
        """A call with donated inputs, or with results that are inputs."""
        arrays = [*self.bound, *inputs]
        uses = Counter(id(array._owner) for array in arrays)
        free = {
            position + len(self.bound)
            for position in donated
            if _is_sole_block(inputs[position]) and uses[id(inputs[position]._owner)] == 1
        }
        passed_on = {index for kind, index in self._results if kind == "input"}
        addresses = [array._address for array in arrays]
        blocks = []
        for buffer in self._buffers:
            alias = buffer.alias
            if alias in free and alias not in passed_on:
                blocks.append(arrays[alias]._owner)
                free.discard(alias)
                continue
            blocks.append(allocate(buffer.nbytes))
        handed_through = {("input", i): (addresses[i], arrays[i]._owner) for i in passed_on}
        keep = [donate(array) for array in {id(inputs[p]): inputs[p] for p in donated}.values()]
        self.run(addresses, [block.address for block in blocks], registers)
        del keep
        made: dict[tuple[str, int], Array] = {}
        results = []
        for place, kind in zip(self._results, self._types, strict=True):
            role, index = place
            array = made.get(place)
            if array is not None and array._type is kind:
                results.append(array)
                continue
            if role == "output":
                address, owner = blocks[index].address, blocks[index]
            else:
                address, owner = handed_through[place]
            if array is not None or role != "output":
                owner.pinned = True
            made[place] = new = make_array(address, kind, owner)
            results.append(new)
        return results

    def run(
        self, inputs: Sequence[int], outputs: Sequence[int], registers: Sequence[int] = ()
    ) -> None:
        """Run on addresses.

        Args:
            inputs: address of every input, bound ones first, aligned to their elements.
            outputs: address of every output buffer in declared order, 64-byte aligned.
            registers: run-time integers in declared order.

        Raises:
            ShapeError: a wrong number of addresses or registers.
            NativeError: native code reported an error.
        """
        arena = allocate(self._arena_bytes) if self._arena_bytes else None
        slots = [*inputs, *outputs]
        if self._temps:
            base = arena.address if arena is not None else 0
            slots += [base + offset for offset in self._temps]
        if self._order is not None:
            slots = [slots[i] for i in self._order]
        try:
            packed = self._pack(*slots, *registers)
        except struct.error:
            raise self._count_error(inputs, outputs, registers) from None
        start = time.perf_counter() if self._timed else 0.0
        if self._entry is not None:
            code = self._entry(packed)
            if code:
                raise self._native_error(code)
        else:
            self._run_segments(packed, slots)
        if self._timed:
            self._report(time.perf_counter() - start)

    def _run_segments(self, packed: bytes, slots: list[int]) -> None:
        for segment in self.compiled.segments:
            if hasattr(segment, "address"):
                code = _Entry(segment.address)(packed)
                if code:
                    raise self._native_error(code)
            else:
                self._run_host(segment, slots)

    def _run_host(self, segment: Any, slots: list[int]) -> None:
        buffers = self.compiled.outline.buffers

        def views(indices: Sequence[int], read_only: bool) -> list[np.ndarray]:
            return [
                numpy_view(self, slots[i], buffers[i].shape, buffers[i].dtype, read_only)
                for i in indices
            ]

        run_host_call(
            segment.function,
            views(segment.ins, True),
            views(segment.outs, False),
            dict(segment.attrs),
            segment.source,
        )

    # ---- reports
    def _native_error(self, code: int) -> NativeError:
        return NativeError(
            message(
                f"Native code of program {self.name} reported error {code}",
                None,
                "Run it with TRNX_CHECK=1 and report what that prints",
            )
        )

    def _count_error(
        self, inputs: Sequence[int], outputs: Sequence[int], registers: Sequence[int]
    ) -> ShapeError:
        tile = self.compiled.outline
        wanted = Counter(buffer.kind for buffer in tile.buffers)
        return ShapeError(
            message(
                f"Program {self.name} takes {wanted['input']} inputs, {wanted['output']} outputs "
                f"and {len(tile.registers)} registers, but got {len(inputs)}, {len(outputs)} "
                f"and {len(registers)}",
                None,
                "Pass one address per buffer and one integer per register",
            )
        )

    def _report(self, seconds: float) -> None:
        nbytes = sum(
            math.prod(b.shape) * b.dtype.itemsize
            for b in self.compiled.outline.buffers
            if b.kind != "temp" and all(isinstance(size, int) for size in b.shape)
        )
        rate = nbytes / seconds / 1e9 if seconds else 0.0
        print(
            f"trnx: {self.name} on {self.device}: {seconds * 1e6:.1f} us, {nbytes:,} B in and out, "
            f"{rate:.2f} GB/s",
            file=sys.stderr,
        )

    def __repr__(self) -> str:
        results = ", ".join(map(str, self.out_avals))
        return f"<Executable {self.name} on {self.device}: ({results})>"


def _is_sole_block(array: Array) -> bool:
    """True if the array's memory is a whole block that nobody else sees."""
    owner = array._owner
    return isinstance(owner, Block) and not owner.pinned and owner.address == array._address
