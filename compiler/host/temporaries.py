"""Extra tiles for instructions whose operands must first be brought into another form."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from trnx.compiler.host.emit import Value, i64
from trnx.compiler.host.memory import TileMemory, byte_address
from trnx.compiler.host.phases import schedule
from trnx.compiler.host.rowgroup import RowGroup
from trnx.compiler.host.rowops import row_op
from trnx.compiler.host.surroundings import Surroundings
from trnx.compiler.host.types import DType
from trnx.compiler.tile.expr import Index, add, mul
from trnx.compiler.tile.ir import Access, HbmAccess, Instruction, Span, TileAccess, row_major

_NAME: Final = "%temp"


@dataclass(frozen=True, slots=True)
class PanelPart:
    """Columns of a packed operand: where they go, and how they are cut in a dense row."""

    access: TileAccess
    columns: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class PackedPanels:
    """A matrix in panels: panel j holds columns ``[j * width, (j + 1) * width)`` of all rows.

    Attributes:
        access: the first column of all rows.
        columns: of the matrix.
        width: columns of a panel.
        pitch: elements from row to row.
        step: elements from panel to panel.
    """

    access: TileAccess
    columns: int
    width: int
    pitch: int
    step: int

    def parts(self, first_row: Index, rows: int) -> Iterator[tuple[int, PanelPart]]:
        """(first column, where) of the whole panels and of the rest, for some rows."""
        whole, rest = divmod(self.columns, self.width)
        down = mul(first_row, self.pitch)
        if whole:
            spans = (Span(self.step, whole), Span(1, self.width))
            place = replace(self.access, partitions=rows, offset=down, spans=spans)
            yield 0, PanelPart(place, (Span(self.width, whole), Span(1, self.width)))
        if rest:
            at = add(down, whole * self.step)
            place = replace(self.access, partitions=rows, offset=at, spans=(Span(1, rest),))
            yield whole * self.width, PanelPart(place, (Span(1, rest),))


class Temporaries:
    """Surroundings with extra tiles in scratch memory."""

    def __init__(self, around: Surroundings) -> None:
        self._dtypes: dict[str, DType] = {}
        self._inner = around.dtype_of
        self.around = replace(
            around,
            tiles=dict(around.tiles),
            shapes=dict(around.shapes),
            dtype_of=self._dtype_of,
        )

    def _dtype_of(self, access: Access) -> DType:
        if isinstance(access, TileAccess) and access.tile in self._dtypes:
            return self._dtypes[access.tile]
        return self._inner(access)

    def add(self, rows: int, like: TileAccess, dtype: DType, one_row: bool = False) -> TileAccess:
        """A dense tile with the access's free shape; ``one_row`` makes all rows the same memory."""
        name = f"{_NAME}{len(self._dtypes)}"
        self._dtypes[name] = dtype
        shape = self.around.shapes[like.tile]
        free = int(np.prod(shape[1:], dtype=np.int64))
        memory = self.around.allocate(1 if one_row else rows, free * dtype.itemsize)
        tiles, shapes = self.around.tiles, self.around.shapes
        assert isinstance(tiles, dict) and isinstance(shapes, dict)
        tiles[name], shapes[name] = memory, (rows, free)
        counts = tuple(s.count for s in like.spans)
        return TileAccess(name, 0, like.partitions, 0, row_major(counts))

    def add_panels(self, rows: int, columns: int, width: int, dtype: DType) -> PackedPanels:
        """A new tile for a matrix in panels of `width` columns."""
        name = f"{_NAME}{len(self._dtypes)}"
        self._dtypes[name] = dtype
        count = -(-columns // width)
        row = width * dtype.itemsize
        block = self.around.allocate(1, rows * count * row)
        tiles, shapes = self.around.tiles, self.around.shapes
        assert isinstance(tiles, dict) and isinstance(shapes, dict)
        tiles[name] = TileMemory(block.base, row)  # rows of a panel are read in order: no gaps
        shapes[name] = (rows, width * rows * count)
        access = TileAccess(name, 0, rows, 0, (Span(1, 1),))
        return PackedPanels(access, columns, width, width, width * rows)

    def run(self, instructions: Sequence[Instruction]) -> None:
        """Run partition-local instructions, each as a row group of its own, all through memory."""
        for instruction in instructions:
            op = row_op(0, instruction, self._dtype_of)
            names = {
                a.tile for a in (*instruction.outs, *instruction.ins) if isinstance(a, TileAccess)
            }
            planned = schedule([op], names, lambda a, b: int(a == b))
            with self.around.indices.scope():
                access = instruction.outs[0]
                assert isinstance(access, TileAccess)
                RowGroup(self.around, planned).emit(access.partitions)


def base_address(around: Surroundings, access: Access) -> tuple[Value, int]:
    """Address of an access's first element and its row pitch in bytes (tiles)."""
    f, size = around.f, around.dtype_of(access).itemsize
    offset = around.indices.value(access.offset)
    if isinstance(access, HbmAccess):
        return byte_address(f, around.params[access.buffer], offset, size, i64(0)), 0
    memory: TileMemory = around.tiles[access.tile]
    row = i64(access.start * memory.pitch)
    return byte_address(f, memory.base, offset, size, row), memory.pitch
