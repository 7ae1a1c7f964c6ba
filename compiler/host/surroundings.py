"""What emitters need from the kernel around them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from trnx.compiler.host.emit import Function, Value
from trnx.compiler.host.index import Indices
from trnx.compiler.host.memory import TileMemory
from trnx.compiler.host.types import DType
from trnx.compiler.tile.ir import Access


@dataclass(slots=True)
class Surroundings:
    """The function being written and what is in scope.

    ``allocate(rows, row_bytes)`` gives scratch memory until the end of the present statement.
    """

    f: Function
    indices: Indices
    tiles: Mapping[str, TileMemory]
    params: Mapping[str, Value]
    dtype_of: Callable[[Access], DType]
    native: bool
    shapes: Mapping[str, tuple[int, ...]]
    allocate: Callable[[int, int], TileMemory]
