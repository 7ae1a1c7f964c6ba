"""One running kernel call: values of registers and loop indices, and where operands are.

``Frame.view`` turns an access pattern into byte windows of a memory and checks its bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from trnx.compiler.sim.memory import Memory, View
from trnx.compiler.tile.expr import Atom, Expr, Index, Symbol
from trnx.compiler.tile.ir import Access, HbmAccess, Kernel, Tile, TileAccess
from trnx.compiler.tile.text import access_text
from trnx.core.dtypes import short_name
from trnx.core.errors import TileError, message
from trnx.core.source import Source


@dataclass(frozen=True, slots=True)
class Binding:
    """Where a kernel parameter lives: ``size`` bytes at byte ``base`` of an HBM memory."""

    memory: Memory
    base: int
    size: int
    dtype: np.dtype[Any]


@dataclass(frozen=True)
class RowsView:
    """An indirect HBM access: one window per index row, in ascending partition order."""

    rows: tuple[View, ...]
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype[Any]
    memory: Memory
    index: View
    partitions: tuple[int, int] | None = None

    @property
    def empty(self) -> bool:
        """Whether the access has no element."""
        return 0 in self.shape

    def read(self) -> tuple[NDArray[Any], int]:
        """A copy of the rows and how many elements were uninitialised."""
        if not self.rows:
            return np.empty(self.shape, self.dtype), 0
        parts = [row.read() for row in self.rows]
        return np.stack([p[0] for p in parts]), sum(p[1] for p in parts)

    def write(self, values: NDArray[Any]) -> None:
        """Store row by row; with repeated indices the last row wins."""
        for row, value in zip(self.rows, values, strict=True):
            row.write(value)

    @cached_property
    def windows(self) -> tuple[View, ...]:
        """The plain windows the access touches in HBM."""
        return self.rows


Window: TypeAlias = View | RowsView


def windows(view: Window) -> tuple[View, ...]:
    """The plain windows a view is made of."""
    return view.windows if isinstance(view, RowsView) else (view,)


class Frame:
    """Bindings and values of one kernel call.

    Args:
        kernel: the kernel that runs.
        params: a ``Binding`` per parameter name.
        registers: values of the kernel's register arguments.
        memories: ``sbuf`` and ``psum``.
        check_bounds: off in the cost walk, whose register values are assumptions.
    """

    def __init__(
        self,
        kernel: Kernel,
        params: Mapping[str, Binding],
        registers: Mapping[str, int],
        memories: Mapping[str, Memory],
        check_bounds: bool = True,
    ) -> None:
        self.kernel = kernel
        self.params = params
        self.env: dict[str, int] = dict(registers)
        self.memories = memories
        self.check_bounds = check_bounds
        self.tiles: dict[str, Tile] = {}
        # byte of the current copy inside each of its partitions
        self.tile_bytes: dict[str, int] = {}
        # tiles declared but not yet accessed; their bytes are forgotten at the first access, as an
        # address may still serve another tile between the declaration and that access
        self.fresh: set[str] = set()
        # accesses live as long as the program, so their ids name them
        self._constant: dict[int, bool] = {}
        self._views: dict[tuple[int, int], View] = {}
        self._shapes: dict[int, View] = {}

    def value(self, index: Index) -> int:
        """The integer an index expression denotes now."""
        if isinstance(index, int):
            return index
        function = _COMPILED.get(index)
        if function is None:
            function = _COMPILED[index] = compile_index(index)
        try:
            return function(self.env)
        except KeyError as error:
            raise TileError(
                message(
                    f"{error.args[0]!r} in '{index}' of kernel '{self.kernel.name}' has no value",
                    self.kernel.source,
                    "Set the register, or use the loop index only inside its loop",
                )
            ) from None

    def declare(self, tile: Tile, copy: int) -> None:
        """Bring a tile into scope at its address, using rotating copy ``copy``."""
        if tile.address is None:
            raise TileError(
                message(
                    f"tile '{tile.name}' of kernel '{self.kernel.name}' has no address",
                    self.kernel.source,
                    "Run place(kernel, target) before simulating",
                )
            )
        self.tiles[tile.name] = tile
        self.tile_bytes[tile.name] = tile.address[1] + copy * tile.free_bytes
        self.fresh.add(tile.name)

    def dtype(self, access: Access) -> np.dtype[Any]:
        """Element type of what an access refers to."""
        if isinstance(access, TileAccess):
            return self._tile(access, None).dtype
        return self.params[access.buffer].dtype

    def memory_of(self, access: Access) -> str:
        """``sbuf``, ``psum`` or ``hbm``."""
        return self._tile(access, None).memory if isinstance(access, TileAccess) else "hbm"

    def _tile(self, access: TileAccess, source: Source | None) -> Tile:
        tile = self.tiles.get(access.tile)
        if tile is None:
            raise TileError(
                message(
                    f"tile '{access.tile}' is used outside its scope in '{self.kernel.name}'",
                    source or self.kernel.source,
                    "Allocate it in an enclosing body",
                )
            )
        return tile

    def _counts(self, access: Access, source: Source | None) -> tuple[int, ...]:
        shape = tuple(self.value(c) for c in access.shape)
        if any(c < 0 for c in shape):
            raise TileError(
                message(
                    f"access {access_text(access)} has a negative count {list(shape)}",
                    source or self.kernel.source,
                    "Bound the count with max(0, ...)",
                )
            )
        return shape

    def view(self, access: Access, source: Source | None = None) -> Window:
        """The bytes an access covers now.

        Raises:
            TileError: the access leaves its tile, its buffer or the memory, or a count is negative.
        """
        if isinstance(access, TileAccess):
            return self._tile_view(access, source)
        return self._hbm_view(access, source)

    def _tile_view(self, access: TileAccess, source: Source | None) -> View:
        tile = self._tile(access, source)
        byte = self.tile_bytes[tile.name]
        constant = self._is_constant(access)
        key = (id(access), byte)
        if constant and key in self._views and tile.name not in self.fresh:
            return self._views[key]
        made = self._make_tile_view(access, tile, source)
        if tile.name in self.fresh:
            self.fresh.discard(tile.name)
            if self.check_bounds:
                self.whole(tile).forget()
        if constant:
            self._views[key] = made
        return made

    def _is_constant(self, access: TileAccess | HbmAccess) -> bool:
        known = self._constant.get(id(access))
        if known is None:
            values = [access.offset, *access.shape, *(s.stride for s in access.spans)]
            known = self._constant[id(access)] = all(isinstance(v, int) for v in values)
        return known

    def geometry(self, access: Access) -> View:
        """Shape, strides and memory of an access without its place: what its cost depends on."""
        made = self._shapes.get(id(access))
        if made is not None:
            return made
        if isinstance(access, TileAccess):
            return self._tile_view(access, None)
        shape = self._counts(access, None)
        binding = self.params[access.buffer]
        item = binding.dtype.itemsize
        strides = tuple(self.value(s.stride) * item for s in access.spans)
        made = View(binding.memory, 0, shape, strides, binding.dtype)
        if all(isinstance(v, int) for s in access.spans for v in (s.stride, s.count)):
            self._shapes[id(access)] = made
        return made

    def _make_tile_view(self, access: TileAccess, tile: Tile, source: Source | None) -> View:
        memory = self.memories[tile.memory]
        shape = self._counts(access, source)
        item = tile.dtype.itemsize
        strides = tuple(self.value(s.stride) for s in access.spans)
        offset = self.value(access.offset)
        if self.check_bounds and 0 not in shape:
            low, high = reach(offset, shape[1:], strides)
            if access.start + shape[0] > tile.shape[0] or low < 0 or high >= tile.free_size:
                raise TileError(
                    message(
                        f"access {access_text(access)} covers partitions {access.start}.."
                        f"{access.start + shape[0] - 1} and elements {low}..{high} of tile "
                        f"{tile_text(tile)}",
                        source or self.kernel.source,
                        "Keep the access inside the tile, for example with minimum()",
                    )
                )
        assert tile.address is not None
        first = tile.address[0] + access.start
        byte = self.tile_bytes[tile.name]
        pitch = memory.partition_bytes
        rows = memory.size // pitch
        if self.check_bounds and (byte + tile.free_bytes > pitch or first + shape[0] > rows):
            raise TileError(
                message(
                    f"tile {tile_text(tile)} at {tile.address} leaves {tile.memory.upper()}, "
                    f"which has {pitch} bytes in each of {rows} partitions",
                    source or self.kernel.source,
                    "Make the tile smaller or place it elsewhere",
                )
            )
        return View(
            memory,
            first * pitch + byte + offset * item,
            shape,
            (pitch, *(s * item for s in strides)),
            tile.dtype,
            (first, shape[0]),
        )

    def whole(self, tile: Tile) -> View:
        """All bytes of the tile's current copy."""
        assert tile.address is not None
        memory = self.memories[tile.memory]
        pitch = memory.partition_bytes
        offset = tile.address[0] * pitch + self.tile_bytes[tile.name]
        shape = (tile.shape[0], tile.free_bytes)
        partitions = (tile.address[0], tile.shape[0])
        return View(memory, offset, shape, (pitch, 1), np.dtype(np.uint8), partitions)

    def _hbm_view(self, access: HbmAccess, source: Source | None) -> Window:
        binding = self.params.get(access.buffer)
        if binding is None:
            raise TileError(
                message(
                    f"kernel '{self.kernel.name}' has no parameter '{access.buffer}'",
                    source or self.kernel.source,
                    "Declare the parameter",
                )
            )
        shape = self._counts(access, source)
        strides = tuple(self.value(s.stride) for s in access.spans)
        offset = self.value(access.offset)
        if access.index is None:
            return self._hbm_window(access, binding, offset, shape, strides, source)
        index = self._tile_view(access.index, source)
        if self.check_bounds:
            values, missing = index.read()
            if missing:
                raise TileError(
                    message(
                        f"the index tile of {access_text(access)} is uninitialised",
                        source or self.kernel.source,
                        "Load the indices first",
                    )
                )
            flat = [int(v) for v in values.reshape(-1)]
        else:
            flat = [0] * int(np.prod(index.shape))
        if shape and len(flat) != shape[0]:
            raise TileError(
                message(
                    f"access {access_text(access)} moves {shape[0]} rows with {len(flat)} indices",
                    source or self.kernel.source,
                    "Give one index per row",
                )
            )
        rows = tuple(
            self._hbm_window(
                access, binding, offset + i * strides[0], shape[1:], strides[1:], source
            )
            for i in flat
        )
        item = binding.dtype.itemsize
        byte_strides = tuple(s * item for s in strides)
        return RowsView(rows, shape, byte_strides, binding.dtype, binding.memory, index)

    def _hbm_window(
        self,
        access: HbmAccess,
        binding: Binding,
        offset: int,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        source: Source | None,
    ) -> View:
        item = binding.dtype.itemsize
        if self.check_bounds and 0 not in shape:
            low, high = reach(offset, shape, strides)
            if low < 0 or (high + 1) * item > binding.size:
                raise TileError(
                    message(
                        f"access {access_text(access)} covers elements {low}..{high} of HBM buffer "
                        f"'{access.buffer}', which has {binding.size // item} "
                        f"{short_name(binding.dtype)} elements",
                        source or self.kernel.source,
                        "Keep offsets and counts inside the buffer, for example with minimum()",
                    )
                )
        return View(
            binding.memory,
            binding.base + offset * item,
            shape,
            tuple(s * item for s in strides),
            binding.dtype,
        )


Compiled: TypeAlias = Callable[[Mapping[str, int]], int]

_COMPILED: WeakKeyDictionary[Expr, Compiled] = WeakKeyDictionary()

_CALLS: dict[str, Callable[[int, int], int]] = {
    "min": min,
    "max": max,
    "floordiv": lambda a, b: a // b,
    "mod": lambda a, b: a % b,
    "mul": lambda a, b: a * b,
}


def compile_index(index: Index) -> Compiled:
    """The expression as a function of its symbols' values (an inner loop of the simulator)."""
    if isinstance(index, int):
        return lambda env: index
    const = index.const
    parts = [(c, _compile_atom(a)) for a, c in index.terms]
    if len(parts) == 1:
        coefficient, atom = parts[0]
        return lambda env: const + coefficient * atom(env)
    return lambda env: const + sum(c * atom(env) for c, atom in parts)


def _compile_atom(atom: Atom) -> Compiled:
    if isinstance(atom, Symbol):
        name = atom.name
        return lambda env: env[name]
    left, right = compile_index(atom.args[0]), compile_index(atom.args[1])
    apply = _CALLS[atom.op]
    return lambda env: apply(left(env), right(env))


def reach(offset: int, counts: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, int]:
    """Smallest and largest element offset of a non-empty pattern."""
    low = high = offset
    for count, stride in zip(counts, strides, strict=True):
        span = stride * (count - 1)
        low, high = low + min(span, 0), high + max(span, 0)
    return low, high


def tile_text(tile: Tile) -> str:
    """``t0: sbuf f32[128,512]`` for messages."""
    return f"{tile.name}: {tile.memory} {short_name(tile.dtype)}[{','.join(map(str, tile.shape))}]"
