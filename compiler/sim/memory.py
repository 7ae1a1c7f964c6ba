"""Byte memories of the simulator and typed views into them.

HBM spaces, SBUF and PSUM are flat arrays of bytes with one flag per byte that says whether it was
ever written. Tiles are addresses in those bytes, so tiles that overlap in address overlap in data.
On-chip memory is stored partition after partition: byte ``b`` of partition ``p`` is at
``p * partition_bytes + b``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trnx.compiler.targets import Target
from trnx.core.dtypes import is_float

INTEGER_POISON = 4
"""What an uninitialised integer element reads as; floats read as NaN (as in the NKI simulator)."""


class Memory:
    """A flat byte memory.

    Args:
        name: ``sbuf``, ``psum``, or the name of an HBM space for messages.
        size: bytes.
        partition_bytes: bytes per partition of an on-chip memory, 0 for HBM.
        initialised: whether every byte counts as written from the start.
    """

    def __init__(
        self, name: str, size: int, partition_bytes: int = 0, initialised: bool = False
    ) -> None:
        self.name = name
        self.size = size
        self.partition_bytes = partition_bytes
        # np.zeros maps pages on first touch, so a whole SBUF costs only what the program uses.
        self.data = np.zeros(size, np.uint8)
        self.written: NDArray[np.bool_] | None = None if initialised else np.zeros(size, np.bool_)


def on_chip(target: Target) -> dict[str, Memory]:
    """Fresh SBUF and PSUM of a target."""
    parts = target.partitions
    return {
        "sbuf": Memory("sbuf", target.sbuf_bytes, target.sbuf_partition_bytes),
        "psum": Memory("psum", parts * target.psum_partition_bytes, target.psum_partition_bytes),
    }


@dataclass(frozen=True)
class View:
    """A typed strided window: ``shape`` elements of ``dtype`` at byte ``offset`` of a memory.

    ``strides`` are in bytes. ``partitions`` is ``(first, count)`` for on-chip windows, whose first
    dimension walks partitions; None for HBM.
    """

    memory: Memory
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype[Any]
    partitions: tuple[int, int] | None = None

    @cached_property
    def empty(self) -> bool:
        """Whether the window has no element."""
        return 0 in self.shape

    @property
    def array(self) -> NDArray[Any]:
        """The elements as a writable array that shares the memory."""
        return np.ndarray(self.shape, self.dtype, self.memory.data.data, self.offset, self.strides)

    def peek(self) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """A copy of the stored elements and which of them are initialised."""
        if self.memory.written is None or self.empty:
            return self.array.copy(), np.ones(self.shape, np.bool_)
        return self.array.copy(), np.asarray(self._flags().all(axis=-1))

    def _flags(self) -> NDArray[np.bool_]:
        assert self.memory.written is not None
        return np.ndarray(
            (*self.shape, self.dtype.itemsize),
            np.bool_,
            self.memory.written.data,
            self.offset,
            (*self.strides, 1),
        )

    def read(self) -> tuple[NDArray[Any], int]:
        """A copy of the elements and how many were uninitialised; those hold poison."""
        values = self.array.copy()
        if self.memory.written is None or self.empty:
            return values, 0
        flags = self._flags()
        if flags.all():
            return values, 0
        missing = ~flags.all(axis=-1)
        values[missing] = poison(self.dtype)
        return values, int(missing.sum())

    def write(self, values: NDArray[Any], written: NDArray[np.bool_] | None = None) -> None:
        """Store ``values`` of the window's dtype and mark the bytes written.

        Args:
            values: array of the window's shape.
            written: elements that count as initialised afterwards; all of them when None.
        """
        if self.empty:
            return
        self.array[...] = values
        if self.memory.written is not None:
            self._flags()[...] = True if written is None else written[..., None]

    def forget(self) -> None:
        """Mark the bytes as never written."""
        if self.memory.written is not None and not self.empty:
            self._flags()[...] = False

    @cached_property
    def extent(self) -> tuple[int, int]:
        """``(first byte, one past the last byte)`` in the memory; on chip within one partition."""
        if self.empty:
            return self.offset, self.offset
        low = high = self.offset
        first = 0 if self.partitions is None else 1
        for count, stride in zip(self.shape[first:], self.strides[first:], strict=True):
            reach = stride * (count - 1)
            low, high = low + min(reach, 0), high + max(reach, 0)
        high += self.dtype.itemsize
        if self.partitions is not None:
            base = self.partitions[0] * self.memory.partition_bytes
            return low - base, high - base
        return low, high

    @cached_property
    def runs(self) -> tuple[NDArray[np.int64], int]:
        """Sorted first bytes and the common length of the contiguous runs the window covers.

        On chip the runs are those of one partition, counted from its byte 0.
        """
        first = 0 if self.partitions is None else 1
        base = self.offset
        if self.partitions is not None:
            base -= self.partitions[0] * self.memory.partition_bytes
        return byte_runs(base, self.shape[first:], self.strides[first:], self.dtype.itemsize)

    def overlaps(self, other: View) -> bool:
        """Whether the two windows share a byte."""
        if self.memory is not other.memory or self.empty or other.empty:
            return False
        if self.partitions is not None and other.partitions is not None:
            (p0, n0), (p1, n1) = self.partitions, other.partitions
            if p0 >= p1 + n1 or p1 >= p0 + n0:
                return False
        (low0, high0), (low1, high1) = self.extent, other.extent
        if low0 >= high1 or low1 >= high0:
            return False
        return runs_overlap(self.runs, other.runs)


def byte_runs(
    base: int, shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int
) -> tuple[NDArray[np.int64], int]:
    """Sorted starts and the common length of the byte runs of a strided pattern."""
    length = itemsize
    rest: list[tuple[int, int]] = []
    dims = sorted(
        ((abs(s), c, s) for c, s in zip(shape, strides, strict=True) if c > 1 and s != 0),
        key=lambda dim: dim[0],
    )
    for magnitude, count, stride in dims:
        if stride < 0:
            base += stride * (count - 1)
        # Runs that touch or overlap grow into one longer run.
        if not rest and magnitude <= length:
            length += magnitude * (count - 1)
        else:
            rest.append((magnitude, count))
    starts = np.array([base], np.int64)
    for magnitude, count in reversed(rest):
        steps = np.arange(count, dtype=np.int64) * magnitude
        starts = (starts[:, None] + steps[None, :]).reshape(-1)
    starts.sort()
    return starts, length


def runs_overlap(left: tuple[NDArray[np.int64], int], right: tuple[NDArray[np.int64], int]) -> bool:
    """Whether any run of ``left`` shares a byte with any run of ``right``."""
    (starts, length), (others, other_length) = left, right
    # The last other run that begins before a run's end is the one that reaches furthest.
    position = np.searchsorted(others, starts + length, side="left") - 1
    valid = position >= 0
    return bool(np.any(others[position[valid]] + other_length > starts[valid]))


def poison(dtype: np.dtype[Any]) -> Any:
    """The value that uninitialised elements of ``dtype`` read as."""
    if dtype.kind == "b":
        return True
    if dtype.kind in "iu":
        return INTEGER_POISON
    if dtype.kind == "c" or is_float(dtype):
        return float("nan")
    raise TypeError(f"no poison for {dtype}")
