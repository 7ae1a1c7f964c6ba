"""Convolution kernels: contractions whose right operand is a view of overlapping windows.

The channels lie on the partitions. A strip of the operand is loaded once, with the border its
windows reach; every tap of the window is then an access pattern into the strip that TensorE moves,
and the sum over taps and channels stays in PSUM (implicit im2col). The window is the stationary
operand, loaded once for as many out channels as fit SBUF. What follows the product is computed on
the way from PSUM to memory, as for any contraction.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from trnx.compiler.kernels.blocks import chunks
from trnx.compiler.kernels.contraction import ContractionLowering, even_block
from trnx.compiler.kernels.emitter import Emitter, Region
from trnx.compiler.kernels.group import Access, Graph, Node
from trnx.compiler.kernels.row import LoweredKernel
from trnx.compiler.kernels.space import Axis, to_indices
from trnx.compiler.targets import Target
from trnx.compiler.tile.build import predicate
from trnx.compiler.tile.expr import Index, add, floordiv, mod, mul
from trnx.compiler.tile.ir import HbmAccess, Span
from trnx.compiler.tile.views import TileView
from trnx.core import Source, Var

FARTHEST = 16
"""Elements a tap or a place may be apart for one strip to serve both: else it is mostly unused."""

WINDOW_SHARE = 0.45
"""Share of SBUF for the stationary operand."""

STRIP_SHARE = 0.15
"""Share of SBUF for one strip of the moving operand, of which there are two."""


@dataclass(frozen=True, slots=True)
class Slide:
    """A direction of the operand that windows slide along.

    Attributes:
        place: axis of the result.
        taps: axis of the window.
        unit: elements of memory from one element of the strip to the next.
        step: elements of the strip from place to place.
        apart: elements of the strip from tap to tap.
    """

    place: Axis
    taps: Axis
    unit: int
    step: int
    apart: int

    def reach(self, places: int) -> int:
        """Elements of the strip that so many places see."""
        assert isinstance(self.taps.size, int)
        return (places - 1) * self.step + (self.taps.size - 1) * self.apart + 1


def find_slides(
    access: Access, places: Sequence[Axis], contracted: Sequence[Axis]
) -> tuple[Axis, list[Slide]] | None:
    """The channels, and the direction of every other contracted axis; None for other operands.

    A tap belongs to the place whose stride has the most in common with its own; the contracted axis
    that has the least in common with any is the channels.
    """
    strides = {axis: access.strides.get(axis, 0) for axis in (*places, *contracted)}
    if not all(isinstance(s, int) and s > 0 for s in strides.values()):
        return None
    if not all(isinstance(a.size, int) for a in strides):
        return None
    known = {axis: int(str(stride)) for axis, stride in strides.items()}

    def distance(place: Axis, tap: Axis) -> int:
        return max(known[place], known[tap]) // math.gcd(known[place], known[tap])

    pairs = sorted(
        ((distance(p, t), i, j) for (i, p), (j, t) in
         itertools.product(enumerate(places), enumerate(contracted))),
    )  # fmt: skip
    taken: dict[int, int] = {}
    for far, i, j in pairs:
        if len(taken) == len(contracted) - 1:
            break
        if i in taken.values() or j in taken:
            continue
        if far > FARTHEST:
            return None
        taken[j] = i
    if not taken or len(taken) != len(contracted) - 1:
        return None
    (channels,) = (axis for j, axis in enumerate(contracted) if j not in taken)
    slides = []
    for j, axis in enumerate(contracted):
        if j in taken:
            place = places[taken[j]]
            unit = math.gcd(known[place], known[axis])
            slides.append(Slide(place, axis, unit, known[place] // unit, known[axis] // unit))
    return channels, slides


class ConvolutionLowering(ContractionLowering):
    """Lowers one graph with a contraction over windows; see the module docstring."""

    channels: Axis
    slides: list[Slide]
    places: list[Axis]
    blocks: dict[Axis, int]
    part: int
    strip_columns: int

    def _prepare(self) -> bool:
        """Plan the kernel; False when the graph is no convolution that fits."""
        lhs, rhs = self.dot.operands
        if self.reduces or self.beside or self.m is None or not self.k_loops:
            return False
        if lhs.op != "load" or rhs.op != "load":
            return False
        for node in (lhs, rhs):
            if node.access is None or node.access.index is not None:
                return False
        _, rows, columns = self.dot.roles
        contracted = [self.k, *self.k_loops] if self.k is not None else []
        contracted = [a for a in self._order() if a in contracted]
        self.places = [a for a in self._order() if a in columns]
        if len(rows) != 1 or not isinstance(self.m.size, int):
            return False
        assert rhs.access is not None and lhs.access is not None
        found = find_slides(rhs.access, self.places, contracted)
        if found is None or rhs.access.strides.get(self.m, 0) != 0:
            return False
        if any(axis in lhs.access.strides for axis in self.places):
            return False
        self.channels, self.slides = found
        return self._fit(lhs, rhs)

    def _order(self) -> list[Axis]:
        """The axes of the contraction as its operands name them, outer to inner."""
        access = self.dot.operands[1].access
        assert access is not None
        axes = [*self.loops, *self.k_loops]
        axes += [a for a in (self.n, self.k) if a is not None]
        return sorted(axes, key=lambda a: -int(str(access.strides.get(a, 0))))

    def _fit(self, lhs: Node, rhs: Node) -> bool:
        """Choose blocks such that strips, windows and products fit; False when none do."""
        target = self.target
        channels = int(str(self.channels.size))
        self.part = even_block(channels, target.matmul_max_contract)
        tiles = -(-channels // self.part)
        taps = math.prod(int(str(s.taps.size)) for s in self.slides)
        columns = tiles * taps * lhs.dtype.itemsize
        room = int(target.sbuf_usable_bytes * WINDOW_SHARE) // columns
        assert self.m is not None and isinstance(self.m.size, int)
        stationary = target.matmul_max_stationary
        if room < min(self.m.size, stationary):
            return False
        self.strip_columns = self.m.size if room >= self.m.size else room // stationary * stationary
        left = target.matmul_columns(self.psum_dtype.itemsize)
        self.blocks = {}
        for axis in reversed(self.places):
            size = int(str(axis.size))
            self.blocks[axis] = even_block(size, left)
            left = left // self.blocks[axis] if self.blocks[axis] == size else 1
        budget = target.sbuf_usable_bytes * STRIP_SHARE
        for axis in self.places:  # outer axes first: rows are cut before their elements
            while self._strip_bytes(rhs, tiles) > budget and self.blocks[axis] > 1:
                self.blocks[axis] = even_block(int(str(axis.size)), self.blocks[axis] // 2)
        return self._strip_bytes(rhs, tiles) <= budget

    def _strip_bytes(self, rhs: Node, tiles: int) -> int:
        return tiles * math.prod(self._strip_shape(self.blocks)) * rhs.dtype.itemsize

    def _strip_shape(self, counts: Mapping[Axis, int]) -> list[int]:
        """Sizes of a strip per place axis."""
        slides = {s.place: s for s in self.slides}
        return [
            slides[axis].reach(counts[axis]) if axis in slides else counts[axis]
            for axis in self.places
        ]

    # Emission -----------------------------------------------------------------------------------

    def lower(self) -> LoweredKernel:
        """The kernel; that of any other contraction where no windows overlap or fit."""
        if not self._prepare():
            return super().lower()
        batch, _, _ = self.dot.roles
        base: dict[Axis, Index] = {}
        assert self.m is not None
        with ExitStack() as stack:
            stack.enter_context(self.builder.at(self.dot.source))
            for depth, axis in enumerate(a for a in self.loops if a in batch):
                base[axis] = stack.enter_context(self.builder.loop(f"b{depth}", 0, axis.size))
            for first, count, widest in chunks(self.builder, "s", self.m.size, self.strip_columns):
                window = self._window({**base, self.m: first}, int(str(count)), widest)
                for at, counts in self._place_blocks(base, self.places):
                    strip = self._strip(at, counts)
                    self._products(at, counts, window, strip, first, count)
        return LoweredKernel(self.builder.finish(), self.params.variables)

    def _place_blocks(
        self, base: Mapping[Axis, Index], axes: Sequence[Axis]
    ) -> Iterator[tuple[dict[Axis, Index], dict[Axis, int]]]:
        """Blocks of places: (base with the block, count per axis)."""
        if not axes:
            yield dict(base), {}
            return
        axis, *rest = axes
        name = f"p{len(self.places) - len(axes)}"
        for first, count, _ in chunks(self.builder, name, axis.size, self.blocks[axis]):
            for at, counts in self._place_blocks({**base, axis: first}, rest):
                yield at, {axis: int(str(count)), **counts}

    def _offset(self, access: Access, base: Mapping[Axis, Index]) -> Index:
        total = access.offset
        for axis, stride in access.strides.items():
            total = add(total, mul(stride, base.get(axis, 0)))
        return total

    def _load(
        self, node: Node, destination: TileView, base: Mapping[Axis, Index], spans: Sequence[Span]
    ) -> None:
        access = node.access
        assert access is not None
        shape = to_indices(access.var.aval.shape)
        name = self.params.declare(access.var, "in", access.var.aval.dtype, shape)
        source = HbmAccess(name, self._offset(access, base), tuple(spans))
        self._queue += 1
        engine = "sync" if self._queue % 2 else "scalar"
        self.builder.dma_copy(destination, source, engine=engine)

    _queue = 0

    def _channel_tiles(self) -> Iterator[tuple[int, int]]:
        """(first channel, channels) of each partition tile."""
        size = int(str(self.channels.size))
        for first in range(0, size, self.part):
            yield first, min(self.part, size - first)

    def _window(self, base: Mapping[Axis, Index], count: int, widest: int) -> TileView:
        """``[channels, tiles * taps, out channels]`` of the stationary operand."""
        node, _ = self.dot.operands
        assert node.access is not None and self.m is not None
        strides = node.access.strides
        taps = [int(str(s.taps.size)) for s in self.slides]
        many, tiles = math.prod(taps), list(self._channel_tiles())
        window = self.builder.sbuf((self.part, len(tiles) * many, widest), node.dtype)
        for number, (first, rows) in enumerate(tiles):
            part = window[:rows, number * many : (number + 1) * many, :count]
            self._load(
                node,
                part.reshape(rows, *taps, count),
                {**base, self.channels: first},
                [
                    Span(strides.get(self.channels, 0), rows),
                    *(
                        Span(strides.get(slide.taps, 0), n)
                        for slide, n in zip(self.slides, taps, strict=True)
                    ),
                    Span(strides.get(self.m, 0), count),
                ],
            )  # fmt: skip
        return window[:, :, :count]

    def _strip(self, base: Mapping[Axis, Index], counts: Mapping[Axis, int]) -> TileView:
        """``[channels, tiles, *strip]`` of the moving operand, with the border of its windows."""
        node = self.dot.operands[1]
        assert node.access is not None
        strides, units = node.access.strides, {s.place: s.unit for s in self.slides}
        shape = self._strip_shape(counts)
        tiles = list(self._channel_tiles())
        strip = self.builder.sbuf((self.part, len(tiles), *shape), node.dtype)
        for number, (first, rows) in enumerate(tiles):
            self._load(
                node,
                strip[:rows, number],
                {**base, self.channels: first},
                [
                    Span(strides[self.channels], rows),
                    *(
                        Span(units.get(axis, strides.get(axis, 0)), n)
                        for axis, n in zip(self.places, shape, strict=True)
                    ),
                ],
            )
        return strip

    def _products(
        self,
        base: Mapping[Axis, Index],
        counts: Mapping[Axis, int],
        window: TileView,
        strip: TileView,
        start: Index,
        columns: Index,
    ) -> None:
        """All out channels of the window for one block of places."""
        assert self.m is not None
        sizes = [counts[axis] for axis in self.places]
        block = self.target.matmul_max_stationary
        for first, rows, widest in chunks(self.builder, "m", columns, block):
            psum = self.builder.psum((widest, *sizes), self.psum_dtype)
            result = Emitter.cut(psum, (rows, *sizes))
            self._sum(result, window, strip, counts, first, rows)
            region = Region(
                self.m,
                rows,
                widest,
                tuple(self.places),
                tuple(sizes),
                tuple(sizes),
                {**base, self.m: add(start, first)},
            )
            emitter = Emitter(
                self.builder, self.graph, region, self.target, self.params, {self.dot: result}
            )
            if result.dtype != self.dot.dtype and emitter.uses[self.dot] > 1:
                emitter.in_sbuf(self.dot)  # rounds once: readers compare the product with itself
            for store in self.graph.stores:
                emitter.store(store)

    def _sum(
        self,
        result: TileView,
        window: TileView,
        strip: TileView,
        counts: Mapping[Axis, int],
        first: Index,
        rows: Index,
    ) -> None:
        """The products of all taps and channels, accumulated in PSUM."""
        taps = math.prod(int(str(s.taps.size)) for s in self.slides)
        tiles = list(self._channel_tiles())
        whole = [t for t in tiles if t[1] == self.part]
        with self.builder.loop("k", 0, len(whole) * taps) as k:
            tile = floordiv(k, taps) if len(whole) > 1 else 0
            tap = mod(k, taps) if len(whole) > 1 else k
            moving = self._tap(strip[:, tile], tap, counts)
            stationary = window[:, k, first : add(first, rows)]
            self.builder.nc_matmul(result, stationary, moving, accumulate=predicate(k, ">", 0))
        for number, (_, channels) in enumerate(tiles):
            if channels == self.part:
                continue
            with self.builder.loop("r", 0, taps) as tap:
                moving = self._tap(strip[:channels, number], tap, counts)
                at = add(tap, number * taps)
                stationary = window[:channels, at, first : add(first, rows)]
                self.builder.nc_matmul(result, stationary, moving, accumulate=True)

    def _tap(self, strip: TileView, tap: Index, counts: Mapping[Axis, int]) -> TileView:
        """The elements of a strip that one tap sees, over the block of places."""
        inner = 1
        starts: dict[Axis, tuple[Index, int]] = {}
        for slide in reversed(self.slides):
            size = int(str(slide.taps.size))
            here = floordiv(tap, inner)
            here = mod(here, size) if slide is not self.slides[0] else here
            starts[slide.place] = mul(here, slide.apart), slide.step
            inner *= size
        key: list[slice] = [slice(None)]
        for axis in self.places:
            start, step = starts.get(axis, (0, 1))
            stop = add(start, (counts[axis] - 1) * step + 1)
            key.append(slice(start, stop, step))
        return strip[tuple(key)]


def lower_product(
    graph: Graph,
    target: Target,
    source: Source | None = None,
    beside: Sequence[Graph] = (),
    resident: frozenset[Var] = frozenset(),
) -> LoweredKernel:
    """Lower a graph with a contraction to one kernel: a convolution where its windows overlap.

    Args:
        graph: the contraction with what is fused to it.
        target: the hardware table's row.
        source: the user's line.
        beside: contractions of constants with the same right operand.
        resident: variables that a loop around the kernel does not change.
    """
    return ConvolutionLowering(graph, target, source, beside, None, resident).lower()
