"""Turns nodes into instructions on the tiles of one region of an iteration space.

A *region* is what one set of tiles covers: a range of one axis on the partitions, ranges of some
axes on the free dimensions, and fixed indices of the others. An `Emitter` emits each node of a
graph at most once per region, in the order values are asked for. Rules for elementwise primitives
live in `elementwise`, for reductions in `reduction`; they call back into the emitter.

A node that depends on no free axis is a *row scalar*: one number per partition, a ``[P, 1]`` tile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from trnx.compiler.kernels.group import Access, Graph, Node, Store
from trnx.compiler.kernels.registry import RULES
from trnx.compiler.kernels.space import Axis, to_indices
from trnx.compiler.targets import Target
from trnx.compiler.tile.build import KernelBuilder
from trnx.compiler.tile.expr import Index, add, mul
from trnx.compiler.tile.ir import PSUM, HbmAccess, Span, TileAccess
from trnx.compiler.tile.isa import GPSIMD, SCALAR, SYNC
from trnx.compiler.tile.views import TileView
from trnx.core import LoweringError, Var, message, short_name
from trnx.core.dtypes import float32, float64, int32, is_bool, is_float, is_integer

Number: TypeAlias = bool | int | float
Value: TypeAlias = "TileView | Number"
"""What a node became: a view of shape ``(rows, count per free axis, 1 where it repeats)``, or a
number."""


@dataclass(frozen=True, slots=True)
class Region:
    """Part of an iteration space.

    Attributes:
        partition: the axis on the partitions; None uses one partition.
        rows: partitions used (an expression in a loop with a tail).
        max_rows: partitions of the tiles.
        free: axes on the free dimensions, outer to inner.
        counts: elements used per free axis.
        max_counts: elements of the tiles per free axis.
        base: first index of every axis of the space (0 when absent).
    """

    partition: Axis | None
    rows: Index
    max_rows: int
    free: tuple[Axis, ...]
    counts: tuple[Index, ...]
    max_counts: tuple[int, ...]
    base: Mapping[Axis, Index]

    def tile_shape(self, node_axes: frozenset[Axis]) -> tuple[int, ...]:
        """Shape of a tile for a value that depends on these axes."""
        sizes = [
            size if axis in node_axes else 1
            for axis, size in zip(self.free, self.max_counts, strict=True)
        ]
        return (self.max_rows, *(sizes or [1]))

    def counts_of(self, node_axes: frozenset[Axis]) -> tuple[Index, ...]:
        """Used elements per free dimension for a value that depends on these axes."""
        counts = [
            count if axis in node_axes else 1
            for axis, count in zip(self.free, self.counts, strict=True)
        ]
        return (self.rows, *(counts or [1]))


class Params:
    """HBM parameters of a kernel, one per variable, declared on first use."""

    def __init__(self, builder: KernelBuilder, strides: Mapping[Var, Sequence[Index]]) -> None:
        self.builder = builder
        self.strides = strides
        self.names: dict[tuple[Var, np.dtype[Any]], str] = {}

    def declare(self, var: Var, role: str, dtype: np.dtype[Any], shape: Sequence[Index]) -> str:
        """Name of the parameter that sees the variable's buffer as this dtype and shape."""
        name = self.names.get((var, dtype))
        if name is None:
            prefix = "y" if role != "in" else "x"
            number = sum(1 for n in self.names.values() if n.startswith(prefix))
            name = self.names[var, dtype] = f"{prefix}{number}"
            self.builder.param(name, shape, dtype, role, self.strides.get(var))
        return name

    def words(self, var: Var, role: str) -> str:
        """Name of the parameter that sees a 64-bit integer buffer as pairs of 32-bit words."""
        shape = (*to_indices(var.aval.shape), 2)
        return self.declare(var, role, int32, shape)

    @property
    def variables(self) -> tuple[Var, ...]:
        """The variables behind the parameters, in parameter order."""
        return tuple(var for var, _ in self.names)


class Emitter:
    """Emits the nodes of a graph for one region; see the module docstring.

    Args:
        builder: receives the instructions.
        graph: the loop nest.
        region: the part of the space the tiles cover.
        target: the hardware table's row.
        params: HBM parameters of the kernel.
        bound: values that exist already (PSUM results, values hoisted out of a loop).
    """

    def __init__(
        self,
        builder: KernelBuilder,
        graph: Graph,
        region: Region,
        target: Target,
        params: Params,
        bound: Mapping[Node, Value] | None = None,
    ) -> None:
        self.builder = builder
        self.graph = graph
        self.region = region
        self.target = target
        self.params = params
        self.values: dict[Node, Value] = dict(bound or {})
        self.uses = graph.use_counts()
        self.out_dtypes: dict[Node, np.dtype[Any]] = {}
        self.negated: dict[Node, TileView] = {}
        self.placed: dict[Node, TileView] = {}
        self.fresh: set[str] = set()
        self._derived: dict[tuple[str, Node], Node] = {}
        self.sums: dict[Node, Node] = {
            n.operands[0]: n for n in graph.nodes if n.op == "reduce_sum" and n.is_reduction
        }
        self._queue = 0
        self._nested = False  # inside `value`
        self._free = frozenset(region.free)

    # What a node is -----------------------------------------------------------------------------

    def is_row(self, node: Node) -> bool:
        """Whether the node is a number or one number per partition."""
        return not (node.axes & self._free)

    def is_number(self, node: Node) -> bool:
        """Whether the node is a number known now."""
        return node.op == "literal"

    def is_private(self, node: Node) -> bool:
        """Whether the node has one use and no value yet, so it may be merged into its user."""
        return self.uses[node] == 1 and node not in self.values and node.op not in _SOURCES

    def same_shape(self, a: Node, b: Node) -> bool:
        """Whether two nodes depend on the same free axes."""
        return a.axes & self._free == b.axes & self._free

    def derived(self, op: str, node: Node, dtype: np.dtype[Any]) -> Node:
        """A node computed from `node` alone, shared by all users in the region."""
        made = self._derived.get((op, node))
        if made is None:
            wide = float64 if node.dtype == float64 else dtype
            made = Node(op, (node,), wide, node.axes, source=node.source)
            self._derived[op, node] = made
            self.uses[made] = 2  # shared: never merged into one user
        return made

    def adopt(self, made: Node, original: Node) -> None:
        """Treat `made` as the node of the graph it stands for."""
        self.uses[made] = self.uses[original]
        if original in self.out_dtypes:
            self.out_dtypes[made] = self.out_dtypes[original]
        if original in self.sums:
            self.sums[made] = self.sums[original]

    # Tiles --------------------------------------------------------------------------------------

    def dtype_of(self, node: Node) -> np.dtype[Any]:
        """Element type of the tile the node is written to."""
        return self.out_dtypes.get(node, node.dtype)

    def tile(self, node: Node, dtype: np.dtype[Any] | None = None) -> TileView:
        """A tile of the shape of `node`, cut to the used part: new, or where it was placed."""
        if dtype is None and node in self.placed:
            return self.placed[node]
        return self.scratch(node.axes, self.dtype_of(node) if dtype is None else dtype)

    def scratch(self, axes: frozenset[Axis], dtype: np.dtype[Any]) -> TileView:
        """A new tile for a value that depends on these axes, cut to the used part."""
        self.require_dtype(dtype)
        whole = self.builder.sbuf(self.region.tile_shape(axes), dtype)
        self.fresh.add(whole.tile.name)
        return self.cut(whole, self.region.counts_of(axes))

    def require_dtype(self, dtype: np.dtype[Any]) -> None:
        """LoweringError unless the target's tiles hold `dtype`."""
        if not self.target.holds(dtype):
            raise LoweringError(
                message(
                    f"target {self.target.name} has no tiles of {short_name(dtype)}",
                    None,
                    "Convert to a supported dtype, or use device cpu",
                )
            )

    @staticmethod
    def cut(view: TileView, counts: Sequence[Index]) -> TileView:
        """The leading part of a view: ``counts`` of its partitions and free dimensions."""
        if view.shape == tuple(counts):
            return view
        return view[tuple(slice(0, count) for count in counts)]

    def column(self, dtype: np.dtype[Any] = float32, name: str = "") -> TileView:
        """A new ``[P, 1]`` tile with as many free dimensions as the region."""
        shape = (self.region.max_rows, *([1] * max(1, len(self.region.free))))
        return self.builder.sbuf(shape, dtype, name)[: self.region.rows]

    # Values -------------------------------------------------------------------------------------

    def value(self, node: Node) -> Value:
        """The value of a node, emitting it when needed."""
        known = self.values.get(node)
        if known is None:
            if not self._nested:
                self._nested = True
                for station in self._stations(node):
                    self.value(station)
                known = self._emit_at(node)
                self._nested = False
            else:
                known = self._emit_at(node)
        return self.fit(known) if isinstance(known, TileView) else known

    def _emit_at(self, node: Node) -> Value:
        with self.builder.at(node.source):
            made = self.values[node] = self._emit(node)
        return made

    def _stations(self, node: Node) -> list[Node]:
        """Nodes under `node` to emit first, in order, so that no rule calls too deep.

        Rules ask for their operands, so a chain of operations is as many nested calls as it is
        long. Emitting every `_DEPTH`-th node of a chain beforehand keeps Python's stack small and
        everything else about the order as the rules choose it.
        """
        heights: dict[Node, int] = {}
        stations: list[Node] = []
        stack = [node]
        while stack:
            top = stack[-1]
            below = top.operands
            if top.access is not None and top.access.index is not None:
                below = (*below, top.access.index)
            below = tuple(operand for operand in below if operand not in self.values)
            open_nodes = [operand for operand in below if operand not in heights]
            if open_nodes:
                stack += open_nodes
                continue
            stack.pop()
            if top not in heights:
                height = 1 + max((heights[operand] for operand in below), default=0)
                if height == _DEPTH and top is not node:
                    stations.append(top)
                    height = 0
                heights[top] = height
        return stations

    def fit(self, view: TileView) -> TileView:
        """A value of an enclosing region as one of this region: fewer rows, other free rank."""
        if view.partitions != self.region.rows:
            view = view[: self.region.rows]
        rank = max(1, len(self.region.free))
        if len(view.spans) != rank and all(s.count == 1 for s in view.spans):
            view = view.reshape(view.partitions, *([1] * rank))
        return view

    def view(self, node: Node) -> TileView:
        """The value of a node as a tile; a number fills one."""
        value = self.value(node)
        if isinstance(value, TileView):
            return value
        filled = self.tile(node)
        self.builder.memset(filled, value)
        self.values[node] = filled
        return filled

    def spread(self, node: Node, like: Node) -> TileView:
        """The value of a node as a tile view of the shape of `like`, repeating where needed."""
        return self.expand(self.view(node), like)

    def expand(self, view: TileView, like: Node) -> TileView:
        """A view repeated along the free axes of `like` that it does not have."""
        counts = self.region.counts_of(like.axes)
        for axis, count in enumerate(counts):
            if axis and view.shape[axis] != count:
                view = view.broadcast(axis, count)
        return view

    def spread_over_region(self, node: Node) -> TileView:
        """The value of a node repeated over all free axes of the region."""
        like = Node("copy", (), node.dtype, self._free)
        return self.expand(self.view(node), like)

    def in_sbuf_over_region(self, node: Node) -> TileView:
        """`spread_over_region` of an SBUF value."""
        like = Node("copy", (), node.dtype, self._free)
        return self.expand(self.in_sbuf(node), like)

    def scalar(self, node: Node, exact: bool = False) -> TileView | Number:
        """A row scalar as an operand: a number, or a ``[P, 1]`` tile.

        Arithmetic takes ``[P, 1]`` operands in fp32 (f64 with f64 data); `exact` keeps integers.
        """
        value = self.value(node)
        if not isinstance(value, TileView):
            return value
        column = self.as_column(value)
        if exact or column.dtype in (float32, float64) or column.tile.memory == PSUM:
            return column
        wide = self.as_column(self.column())
        self.builder.tensor_copy(wide, column)
        return wide

    @staticmethod
    def as_column(view: TileView) -> TileView:
        """A row scalar's view with exactly one free dimension."""
        return view if len(view.spans) == 1 else view.reshape(view.partitions, 1)

    def in_psum(self, *values: Value) -> bool:
        """Whether any of the values lies in PSUM, which GpSimd and DMA cannot reach."""
        return any(isinstance(v, TileView) and v.tile.memory == PSUM for v in values)

    def in_sbuf(self, node: Node) -> TileView:
        """The value of a node as an SBUF tile."""
        view = self.view(node)
        if view.tile.memory != PSUM:
            return view
        copy = self.scratch(node.axes, self.dtype_of(node))
        self.evict(copy, view)
        self.values[node] = copy
        return copy

    def evict(self, destination: TileView, source: TileView) -> None:
        """Copy PSUM to SBUF, in turn on Scalar and Vector so that both share the work."""
        self._queue += 1
        on_scalar = self.target.scalar_copy and self._queue % 2 and is_float(destination.dtype)
        self.builder.tensor_copy(destination, source, engine=SCALAR if on_scalar else "vector")

    def _emit(self, node: Node) -> Value:
        if node.op == "literal":
            return node.value
        if node.op == "load":
            return self._load(node)
        if node.op == "iota":
            return self._iota(node)
        rule = RULES.get(node.op)
        if rule is None:
            raise LoweringError(
                message(
                    f"{node.op} of {short_name(node.dtype)} has no lowering to {self.target.name}",
                    node.source,
                    "Use device cpu, or express it with supported functions",
                )
            )
        result: Value = rule(self, node)
        return result

    # HBM ----------------------------------------------------------------------------------------

    def offset(self, access: Access) -> Index:
        """Element offset of the region's first element."""
        total = access.offset
        for axis, stride in access.strides.items():
            start = self.region.base.get(axis, 0)
            if start != 0:
                total = add(total, mul(stride, start))
        return total

    def hbm(
        self, access: Access, axes: frozenset[Axis], role: str, dtype: np.dtype[Any]
    ) -> HbmAccess:
        """The region's part of a buffer, shaped like the tile of a value with these axes."""
        shape = to_indices(access.var.aval.shape)
        name = self.params.declare(access.var, role, access.var.aval.dtype, shape)
        spans = self.hbm_spans(access, axes)
        index: TileAccess | None = None
        if access.index is not None:
            index = self._index_column(access.index)
            spans[0] = Span(access.index_stride, self.region.rows)
        return HbmAccess(name, self.offset(access), tuple(spans), index)

    def hbm_spans(self, access: Access, axes: frozenset[Axis]) -> list[Span]:
        """How the region walks a buffer, partitions first, for a value with these axes."""
        region, strides = self.region, access.strides
        own = strides.get(region.partition, 0) if region.partition is not None else 0
        spans = [Span(own, region.rows)]
        for axis, count in zip(region.free, region.counts, strict=True):
            spans.append(Span(strides.get(axis, 0), count) if axis in axes else Span(1, 1))
        if not region.free:
            spans.append(Span(1, 1))
        return spans

    def word(self, access: Access, axes: frozenset[Axis], role: str, part: int) -> HbmAccess:
        """The low (part 0) or high (part 1) words of the region's part of a 64-bit buffer."""
        whole = self.hbm_spans(access, axes)
        spans = tuple(Span(mul(s.stride, 2), s.count) for s in whole)
        offset = add(mul(self.offset(access), 2), part)
        return HbmAccess(self.params.words(access.var, role), offset, spans)

    def _index_column(self, node: Node) -> TileAccess:
        view = self.view(node)
        return self.as_column(view).access

    def _load(self, node: Node) -> TileView:
        assert node.access is not None
        source = self.hbm(node.access, node.axes, "in", node.dtype)
        target = self.tile(node)
        engine = GPSIMD if source.index is not None else self.next_queue()
        self.builder.dma_copy(target, source, engine=engine)
        return target

    def next_queue(self) -> str:
        """The queue for the next load: two queues in turn, so that issue times overlap."""
        self._queue += 1
        return SYNC if self._queue % 2 else SCALAR

    def _iota(self, node: Node) -> TileView:
        assert node.access is not None
        strides, region = node.access.strides, self.region
        counts = region.counts_of(node.axes)[1:]
        steps = [strides.get(axis, 0) for axis in region.free] or [0]
        pattern = tuple(
            (step if count != 1 else 0, count) for step, count in zip(steps, counts, strict=True)
        )
        own = strides.get(region.partition, 0) if region.partition is not None else 0
        ramp = self.tile(node)
        self.builder.iota(
            ramp, pattern=pattern, offset=self.offset(node.access), channel_multiplier=own
        )
        return ramp

    def store(self, store: Store) -> None:
        """Write a result of the graph to HBM."""
        with self.builder.at(store.source):
            node = store.node
            axes = frozenset(store.shape_axes)
            if self.widens(node):
                self._store_words(store, axes)
                return
            source = self.full_shape(self.in_sbuf(node), node, axes)
            target = self.hbm(store.access, axes, "out", node.dtype)
            # Stores have a queue of their own: a load must never wait behind one.
            self.builder.dma_copy(target, source, engine=GPSIMD)

    def full_shape(self, view: TileView, node: Node, axes: frozenset[Axis]) -> TileView:
        """A value repeated over the free axes it does not depend on but `axes` has."""
        if node.axes & self._free == axes & self._free:
            return view
        return self.expand(view, Node("copy", (), node.dtype, axes))

    def widens(self, node: Node) -> bool:
        """Whether the node only widens to a 64-bit integer, which 32-bit stores can do."""
        if node.op != "convert" or node.dtype.itemsize != 8 or self.target.native_i64:
            return False
        source = node.operands[0].dtype
        short = source.itemsize < 8 and (is_integer(source) or is_bool(source))
        return is_integer(node.dtype) and short and self.is_private(node)

    def _store_words(self, store: Store, axes: frozenset[Axis]) -> None:
        """A 64-bit result from its 32-bit operand: low words as they are, high words the sign."""
        (source,) = store.node.operands
        low = self.view(source)
        if low.dtype.itemsize < 4:
            wide = self.scratch(source.axes, int32)
            self.builder.tensor_copy(wide, low)
            low = wide
        high = self.scratch(source.axes, int32)
        if low.dtype == int32:
            # (x < 0)·-1: the comparison with 0 is exact in fp32.
            self.builder.tensor_scalar(high, low, 0, -1, op0="less", op1="multiply")
        else:
            self.builder.memset(high, 0)
        for part, words in enumerate((low, high)):
            target = self.word(store.access, axes, "out", part)
            self.builder.dma_copy(target, self.full_shape(words, source, axes), engine=GPSIMD)

    def load_words(self, node: Node, part: int) -> TileView:
        """The low (part 0) or high (part 1) 32 bits of a 64-bit integer load."""
        assert node.access is not None
        result = self.scratch(node.axes, int32)
        source = self.word(node.access, node.axes, "in", part)
        self.builder.dma_copy(result, source, engine=self.next_queue())
        return result


_SOURCES = frozenset({"load", "literal", "iota", "dot_general"})
_DEPTH = 64  # operations per nest of rules; each takes three to six Python frames
