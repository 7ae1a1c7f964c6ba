"""Operands of a contraction in SBUF: strips with the contracted axis on the partitions.

A strip holds ``k_tiles`` tiles of 128 contracted indices beside each other, ``[128, k_tiles,
width]``. `Operand.strip` fills it from memory: as the data lies when the other axis is the
contiguous one, else by rows and through TensorE transposes. Elementwise nodes between memory and
the contraction are computed on the way.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace

from trnx.compiler.kernels.blocks import block_loop, known
from trnx.compiler.kernels.emitter import Emitter, Params, Region
from trnx.compiler.kernels.group import Graph, Node, split_axis
from trnx.compiler.kernels.space import Axis
from trnx.compiler.targets import Target
from trnx.compiler.tile.build import KernelBuilder
from trnx.compiler.tile.expr import Index, add, mul
from trnx.compiler.tile.views import TileView


@dataclass(frozen=True, slots=True)
class Strip:
    """A part of an operand in SBUF.

    Attributes:
        view: ``[128, k_tiles, width]``; a constant operand has one k tile for all.
        constant: whether every k tile is the same.
        start: first column of the part.
    """

    view: TileView
    constant: bool = False
    start: Index = 0

    def rows(self, first: Index, count: Index) -> Strip:
        """A part of the strip along its width (all of it is kept; `tile_view` cuts)."""
        del count
        return replace(self, start=add(self.start, first))

    def tile_view(self, tile: Index, rows: Index, first: Index, count: Index) -> TileView:
        """``[rows, count]`` of k tile `tile`, from column `first`."""
        at = 0 if self.constant else tile
        begin = 0 if self.constant else add(self.start, first)
        return self.view[:rows, at, begin : add(begin, count)]


class OperandLoader:
    """What both operands of a contraction share."""

    def __init__(
        self, builder: KernelBuilder, graph: Graph, target: Target, params: Params, k: Axis
    ) -> None:
        self.builder = builder
        self.graph = graph
        self.target = target
        self.params = params
        self.k = k
        self.part = target.matmul_max_contract
        self.cut: tuple[Graph, Axis, Axis] | None = None
        if isinstance(k.size, int) and k.size >= 2 * self.part:
            self.cut = split_axis(graph, k, self.part)


class Operand:
    """One side of a contraction.

    Args:
        loader: shared parts.
        node: the operand's node.
        axis: its rows (lhs) or columns (rhs); None when there is one.
        side: 0 for lhs, 1 for rhs.
    """

    def __init__(self, loader: OperandLoader, node: Node, axis: Axis | None, side: int) -> None:
        self.loader = loader
        self.node = node
        self.axis = axis
        self.side = side
        self.is_transposed = self._k_is_contiguous()
        self._constants: dict[int, Strip] = {}

    def _k_is_contiguous(self) -> bool:
        """Whether the operand's main load walks the contracted axis with the smaller stride."""
        if self.axis is None:
            return False
        best: tuple[int, int, int] | None = None
        stack, seen = [self.node], {self.node}
        while stack:
            node = stack.pop()
            if node.op == "load":
                assert node.access is not None
                strides = node.access.strides
                along_k = known(strides.get(self.loader.k, 0), 1 << 40)
                along = known(strides.get(self.axis, 0), 1 << 40)
                entry = (len(strides), abs(along_k), abs(along))
                if along_k and along and (best is None or entry[0] > best[0]):
                    best = entry
            for operand in node.operands:
                if operand not in seen:
                    seen.add(operand)
                    stack.append(operand)
        return best is not None and best[1] < best[2]

    @property
    def is_constant(self) -> bool:
        """Whether the operand is one number."""
        return self.node.op == "literal"

    # Strips -------------------------------------------------------------------------------------

    def strip(
        self, base: Mapping[Axis, Index], width: Index, max_width: int, k_tiles: int
    ) -> Strip:
        """The operand for all of k and `width` indices of its axis from ``base[axis]``."""
        if self.is_constant:
            return self._constant(max_width)
        size = self.loader.k.size
        assert isinstance(size, int)
        part = self.loader.part
        rows = min(part, size)
        tile = self.loader.builder.sbuf((rows, k_tiles, max_width), self.node.dtype)
        view = Emitter.cut(tile, (rows, k_tiles, width))
        if self.is_transposed:
            self._by_rows(view, base, 0, size, width, max_width)
        else:
            self._as_it_lies(view, base, width, max_width)
        return Strip(view)

    def tile(
        self,
        base: Mapping[Axis, Index],
        k_start: Index,
        k_count: Index,
        width: Index,
        max_width: int,
    ) -> Strip:
        """The operand for one tile of k (run-time sizes); its k tile has number 0."""
        if self.is_constant:
            return self._constant(max_width)
        part = min(self.loader.part, known(self.loader.k.size, self.loader.part))
        made = self.loader.builder.sbuf((part, 1, max_width), self.node.dtype)
        view = Emitter.cut(made, (k_count, 1, width))
        at = {**base, self.loader.k: k_start}
        if self.is_transposed:
            self._by_rows(view, at, k_start, k_count, width, max_width)
        else:
            region = Region(
                self.loader.k,
                k_count,
                part,
                () if self.axis is None else (self.axis,),
                () if self.axis is None else (width,),
                () if self.axis is None else (max_width,),
                at,
            )
            self._fill(self.loader.graph, region, self._squeezed(view[:, 0]))
        return _SingleTile(view)

    def _constant(self, width: int) -> Strip:
        """A strip of one repeated number, made in place."""
        tile = self.loader.builder.sbuf((self.loader.part, 1, width), self.node.dtype)
        self.loader.builder.memset(tile, self.node.value)
        return Strip(tile, constant=True)

    def _squeezed(self, view: TileView) -> TileView:
        return view if self.axis is not None else view.reshape(view.partitions, 1)

    def _fill(self, graph: Graph, region: Region, destination: TileView) -> None:
        """Compute the operand over a region into `destination`."""
        loader = self.loader
        emitter = Emitter(loader.builder, graph, region, loader.target, loader.params)
        assert graph.dot is not None
        node = graph.dot.operands[self.side]
        full = node.axes >= frozenset(a for a in region.free)
        if full:
            emitter.placed[node] = destination
        made = emitter.spread_over_region(node)
        if made.tile.name != destination.tile.name:
            loader.builder.tensor_copy(destination, made)

    def _as_it_lies(
        self, view: TileView, base: Mapping[Axis, Index], width: Index, max_width: int
    ) -> None:
        """k on the partitions straight from memory; all whole tiles of k in one transfer."""
        loader = self.loader
        size, part = loader.k.size, loader.part
        assert isinstance(size, int)
        whole, rest = divmod(size, part)
        free = () if self.axis is None else (self.axis,)
        counts = () if self.axis is None else (width,)
        widths = () if self.axis is None else (max_width,)
        if loader.cut is not None:
            graph, outer, inner = loader.cut
            region = Region(
                inner, part, part, (outer, *free), (whole, *counts), (whole, *widths), base
            )
            destination = view[:, 0:whole]
            if self.axis is None:
                destination = destination.reshape(part, whole)
            self._fill(graph, region, destination)
            done = whole
        elif whole:
            region = Region(loader.k, part, part, free, counts, widths, {**base, loader.k: 0})
            self._fill(loader.graph, region, self._squeezed(view[:part, 0]))
            done = 1
        else:
            done = 0
        if rest:
            at = {**base, loader.k: done * part}
            region = Region(loader.k, rest, rest, free, counts, widths, at)
            self._fill(loader.graph, region, self._squeezed(view[:rest, done]))

    def _by_rows(
        self,
        view: TileView,
        base: Mapping[Axis, Index],
        k_start: Index,
        k_count: Index,
        width: Index,
        max_width: int,
    ) -> None:
        """Rows of the operand on the partitions, k on the free axis, then transposes of 128x128."""
        loader, axis = self.loader, self.axis
        assert axis is not None
        builder, part = loader.builder, loader.part
        start = base.get(axis, 0)
        max_k = known(k_count, part)
        with ExitStack() as stack:
            first: Index = 0
            count = width
            if max_width > part:
                first, count = stack.enter_context(block_loop(builder, "r", width, part))
            max_rows = min(part, max_width)
            region = Region(
                axis,
                count,
                max_rows,
                (loader.k,),
                (k_count,),
                (max_k,),
                {**base, axis: add(start, first), loader.k: k_start},
            )
            emitter = Emitter(builder, loader.graph, region, loader.target, loader.params)
            rows = emitter.in_sbuf_over_region(self.node)
            self._transpose(view, rows, k_count, first, count, max_rows)

    def _transpose(
        self,
        view: TileView,
        rows: TileView,
        k_count: Index,
        first: Index,
        count: Index,
        max_rows: int,
    ) -> None:
        """Transposes into PSUM, several to a bank, and one copy out per bank."""
        loader = self.loader
        builder, part = loader.builder, loader.part
        evictor = Emitter(
            builder, loader.graph, Region(None, 1, 1, (), (), (), {}), loader.target, loader.params
        )
        per_bank = max(1, loader.target.psum_bank_bytes // (max_rows * rows.dtype.itemsize))
        tiles = -(-k_count // part) if isinstance(k_count, int) else 1
        whole = k_count // part if isinstance(k_count, int) else 0
        group = max((g for g in range(1, per_bank + 1) if whole and whole % g == 0), default=0)

        def move(tile: Index, many: int, depth: Index) -> None:
            psum = builder.psum(
                (
                    part if isinstance(depth, int) and depth == part else known(depth, part),
                    many,
                    max_rows,
                ),
                rows.dtype,
            )
            for i in range(many):
                begin = mul(add(tile, i), part)
                source = rows[:, begin : add(begin, depth)]
                builder.nc_transpose(psum[:depth, i, :count], source)
            evictor.evict(
                view[:depth, tile : add(tile, many), first : add(first, count)],
                psum[:depth, :, :count],
            )

        if group:
            with block_loop(builder, "t", whole, group) as (tile, _):
                move(tile, group, part)
        if whole < tiles:
            depth = k_count - whole * part if isinstance(k_count, int) else k_count
            move(whole, 1, depth)


class _SingleTile(Strip):
    """A strip of one k tile, whatever number the loop has reached."""

    def tile_view(self, tile: Index, rows: Index, first: Index, count: Index) -> TileView:
        """``[rows, count]`` of the tile."""
        del tile
        return Strip.tile_view(self, 0, rows, first, count)
