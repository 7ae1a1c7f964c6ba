"""Contraction kernels: batched matrix products with everything elementwise around them.

A contraction is ``out[b, m, n] = Σ_k lhs[b, m, k] · rhs[b, k, n]`` over operands of any strides.
TensorE wants k on the partitions of both operands. An operand that has k contiguous in memory is
loaded by rows and transposed on TensorE; any other is loaded as it lies. Elementwise work in front
of an operand (prologue) is done on the loaded tile; what follows (epilogue) on the way from PSUM to
memory, with row reductions over n once the whole row is in SBUF. K is accumulated in PSUM.

Order of loops (static sizes): the operand that fits SBUF whole is loaded once and stays; the other
one streams by in strips, so each operand is read once. When neither fits, rhs is cut into column
blocks that do, and lhs is read once per block. Run-time sizes stream both operands tile by tile.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from trnx.compiler.kernels.blocks import block_loop, chunks, index_symbols, known, live_bytes
from trnx.compiler.kernels.emitter import Emitter, Params, Region, Value
from trnx.compiler.kernels.group import Graph, Node, NotFusable, merge_axes
from trnx.compiler.kernels.operand import Operand, OperandLoader, Strip
from trnx.compiler.kernels.row import LoweredKernel, kernel_name, ordered_axes
from trnx.compiler.kernels.space import Axis
from trnx.compiler.targets import Target
from trnx.compiler.tile.build import KernelBuilder, predicate
from trnx.compiler.tile.expr import Index, add, ceildiv, minimum, mul, scale
from trnx.compiler.tile.views import TileView
from trnx.core import Source, Var
from trnx.core.dtypes import float32, float64

SBUF_SHARE = 0.875
"""Share of SBUF that tiles may fill by plan: the rest is for alignment and row scalars."""

ROW_SHARE = 0.4
"""Share of SBUF for whole rows after a contraction, which must live beside its operands."""


@dataclass(frozen=True, slots=True)
class ContractionSpace:
    """Axes of a contraction by role."""

    batch: frozenset[Axis]
    rows: frozenset[Axis]
    columns: frozenset[Axis]
    contracted: frozenset[Axis]


def classify_contraction(graph: Graph, target: Target) -> ContractionSpace:
    """The roles of the axes of a graph with a contraction.

    Raises:
        NotFusable: the graph is no contraction kernel.
    """
    dot = graph.dot
    assert dot is not None
    contracted = dot.reduced
    batch, rows, columns = dot.roles
    before = _ancestors(dot)
    after = [n for n in graph.nodes if n is not dot and n not in before]
    for node in before:
        if node.is_reduction:
            raise NotFusable("a reduction in front of a contraction")
    extra = graph.axes - contracted - batch - rows - columns
    if extra:
        raise NotFusable("the result runs over axes the contraction does not have")
    for node in after:
        if node.axes & contracted:
            raise NotFusable("the contracted axis is used after the contraction")
    if graph.reduced and not (graph.reduced == columns and columns):
        raise NotFusable("a reduction after a contraction that is not over its last axes")
    if graph.reduced and not _is_one_axis(graph, columns):
        raise NotFusable("a reduction after a contraction over axes that a result walks apart")
    if graph.reduced and not _row_fits(graph, columns, target):
        raise NotFusable("the rows of a contraction do not fit SBUF")
    free = batch | rows | columns
    for store in graph.stores:
        if store.node in before:
            raise NotFusable("an operand of a contraction is also a result")
        axes = frozenset(store.shape_axes)
        if axes != free and axes != free - graph.reduced:
            raise NotFusable("a result does not run over every axis of the contraction")
    return ContractionSpace(batch, rows, columns, contracted)


def _is_one_axis(graph: Graph, columns: frozenset[Axis]) -> bool:
    """True when every access walks the columns as one axis, so that a whole row is one tile."""
    order = [axis for axis in ordered_axes(graph) if axis in columns]
    _, (merged,) = merge_axes(graph, [order])
    return len(merged) == 1


def _row_fits(graph: Graph, columns: frozenset[Axis], target: Target) -> bool:
    if not all(isinstance(a.size, int) for a in columns):
        return False
    widths = {a: known(a.size, 0) for a in columns}
    return live_bytes(graph, widths) <= target.sbuf_usable_bytes * ROW_SHARE


def _ancestors(node: Node) -> set[Node]:
    found: set[Node] = set()
    stack = list(node.operands)
    while stack:
        current = stack.pop()
        if current not in found:
            found.add(current)
            stack.extend(current.operands)
            if current.access is not None and current.access.index is not None:
                stack.append(current.access.index)
    return found


def _load_count(node: Node) -> int:
    """How many buffers an operand is computed from."""
    return sum(1 for n in {node, *_ancestors(node)} if n.op == "load" and len(n.axes) > 1)


def even_block(size: int, limit: int) -> int:
    """The largest block of at most `limit` that cuts `size` evenly into few parts, else `limit`."""
    if size <= limit:
        return size
    fewest = -(-size // limit)
    for count in range(fewest, fewest + 3):
        if size % count == 0:
            return size // count
    return limit


@dataclass(frozen=True, slots=True)
class Plan:
    """Loop order and block sizes of a contraction.

    Attributes:
        order: ``rows`` (rhs stays, rows outside), ``columns`` (lhs stays, columns outside), or
            ``stream`` (tiles of both loaded per product).
        column_block: columns of one PSUM tile.
        strip: columns of rhs that stay in SBUF at one time.
        k_tiles: partition tiles of the contracted axis.
    """

    order: str
    column_block: int
    strip: int
    k_tiles: int


class ContractionLowering:
    """Lowers one graph with a contraction; see the module docstring."""

    def __init__(
        self,
        graph: Graph,
        target: Target,
        source: Source | None,
        beside: Sequence[Graph] = (),
        owner: ContractionLowering | None = None,
        resident: frozenset[Var] = frozenset(),
    ) -> None:
        space = classify_contraction(graph, target)
        order = ordered_axes(graph)
        classes = [
            [a for a in order if a in role]
            for role in (space.batch, space.rows, space.columns, space.contracted)
        ]
        self.graph, (batch, rows, columns, contracted) = merge_axes(graph, classes)
        self.target = target
        self.resident = resident
        self.builder: KernelBuilder
        self.params: Params
        self.plan: Plan
        if owner is not None:
            self.builder, self.params = owner.builder, owner.params
        else:
            self.builder = KernelBuilder(kernel_name(graph), target.name, source=source)
            self.params = Params(self.builder, {})
        self.registers = index_symbols(self.graph, [*batch, *rows, *columns, *contracted])
        assert self.graph.dot is not None
        self.dot = self.graph.dot
        self.m = _largest(rows)
        self.n = columns[-1] if columns else None
        self.k = _largest(contracted)
        assert self.k is not None
        self.loops = [a for a in (*batch, *rows, *columns) if a not in (self.m, self.n)]
        self.k_loops = [a for a in contracted if a is not self.k]
        self.reduces = bool(self.graph.reduced)
        wide = float64 in (o.dtype for o in self.dot.operands) or self.dot.dtype == float64
        self.psum_dtype = float64 if wide else float32
        self.plan = self._plan() if owner is None else owner.plan
        lhs, rhs = self.dot.operands
        loader = OperandLoader(self.builder, self.graph, self.target, self.params, self.k)
        self.lhs = Operand(loader, lhs, self.m, 0)
        self.rhs = Operand(loader, rhs, self.n, 1)
        self.beside = [ContractionLowering(g, target, source, (), self) for g in beside]
        if owner is None:
            for register in sorted(
                self.registers.union(*(other.registers for other in self.beside))
            ):
                self.builder.register_argument(register)

    # Plan ---------------------------------------------------------------------------------------

    def _plan(self) -> Plan:
        rows, columns = _size(self.m), _size(self.n)
        assert self.k is not None
        limit = self.target.matmul_columns(self.psum_dtype.itemsize)
        part = self.target.matmul_max_contract
        static = isinstance(rows, int) and isinstance(columns, int) and isinstance(self.k.size, int)
        if not static or self.k_loops:
            block = even_block(columns, limit) if isinstance(columns, int) else limit
            return Plan("stream", block, block, 1)
        assert isinstance(rows, int) and isinstance(columns, int) and isinstance(self.k.size, int)
        block = even_block(columns, limit)
        k_tiles = -(-self.k.size // part)
        usable = int(self.target.sbuf_usable_bytes * SBUF_SHARE)
        lhs, rhs = self.dot.operands
        strip_bytes = k_tiles * part * lhs.dtype.itemsize
        # A strip of lhs lies beside the rows it is transposed from and what they are computed from.
        lhs_work = strip_bytes * (1 + _load_count(lhs))
        room = usable - lhs_work - self._epilogue_bytes(columns if self.reduces else block)
        per_column = k_tiles * rhs.dtype.itemsize * max(1, _load_count(rhs))
        if room < per_column * block:
            return Plan("stream", block, block, 1)
        whole_rhs = per_column * columns <= room
        if self.reduces:
            return Plan("rows", block, columns if whole_rhs else block, k_tiles)
        lhs_bytes = k_tiles * rows * lhs.dtype.itemsize * (1 + _load_count(lhs))
        whole_lhs = lhs_bytes + 2 * per_column * block <= room + lhs_work
        stays = whole_rhs and self._is_resident(rhs)
        if whole_rhs and (rows > part or columns <= block or not whole_lhs or stays):
            return Plan("rows", block, columns, k_tiles)
        if whole_lhs:
            return Plan("columns", block, block, k_tiles)
        return Plan("rows", block, min(columns, room // per_column // block * block), k_tiles)

    def _is_resident(self, operand: Node) -> bool:
        """Whether an operand is the same in all runs of the kernel, so that it may stay loaded."""
        loads = [n for n in {operand, *_ancestors(operand)} if n.access is not None]
        return bool(loads) and all(n.access.var in self.resident for n in loads if n.access)

    def _epilogue_bytes(self, width: int) -> int:
        """Bytes per partition of what follows the product, double buffered."""
        if self.n is None:
            return 0
        before = _ancestors(self.dot) | {self.dot}
        after = tuple(n for n in self.graph.nodes if n not in before)
        rest = Graph((self.dot, *after), self.graph.stores, None, self.graph.reduced)
        copies = 1 if self.reduces else 2
        return copies * (live_bytes(rest, {self.n: width}) + width * self.dot.dtype.itemsize)

    # Loops --------------------------------------------------------------------------------------

    def lower(self) -> LoweredKernel:
        """The kernel."""
        with ExitStack() as stack:
            stack.enter_context(self.builder.at(self.dot.source))
            base: dict[Axis, Index] = {}
            bound: dict[Node, Value] = {}
            varying = [*self.loops, self.m, self.n]
            for depth, axis in enumerate(self.loops):
                varying.remove(axis)
                base[axis] = stack.enter_context(self.builder.loop(f"b{depth}", 0, axis.size))
            if self.plan.order == "columns":
                self._columns_outside(base, bound)
            else:
                self._rows_outside(base, bound)
        if self.plan.order == "stream":
            for other in self.beside:
                other._rows_outside({}, {})
        return LoweredKernel(self.builder.finish(), self.params.variables)

    @contextmanager
    def _row_block(
        self, base: Mapping[Axis, Index]
    ) -> Iterator[tuple[dict[Axis, Index], Index, int]]:
        """Loop over blocks of rows: (base with the block, rows, partitions of its tiles)."""
        if self.m is None:
            yield dict(base), 1, 1
            return
        part = self.target.matmul_max_stationary
        with block_loop(self.builder, "m", self.m.size, part) as (start, count):
            yield {**base, self.m: start}, count, min(part, known(self.m.size, part))

    def _column_blocks(
        self, base: Mapping[Axis, Index], start: Index, size: Index, block: int, name: str
    ) -> Iterator[tuple[dict[Axis, Index], Index, Index, int]]:
        """Blocks of columns: (base, first column inside the range, count, largest count)."""
        if self.n is None:
            yield dict(base), 0, 1, 1
            return
        for first, count, widest in chunks(self.builder, name, size, block):
            yield {**base, self.n: add(start, first)}, first, count, widest

    def _rows_outside(self, base: Mapping[Axis, Index], bound: Mapping[Node, Value]) -> None:
        plan = self.plan
        columns = _size(self.n)
        if plan.order == "stream" or (self.reduces and plan.strip != columns):
            self._row_loop(base, bound, None, 0, columns)
            return
        for strip_base, first, count, widest in self._column_blocks(
            base, 0, columns, plan.strip, "s"
        ):
            strip = self.rhs.strip(strip_base, count, widest, plan.k_tiles)
            self._row_loop(strip_base, bound, strip, first, count)
            for other in self.beside:
                at = {} if other.n is None else {other.n: first}
                other._row_loop(at, {}, strip, first, count)

    def _row_loop(
        self,
        base: Mapping[Axis, Index],
        bound: Mapping[Node, Value],
        strip: Strip | None,
        start: Index,
        columns: Index,
    ) -> None:
        """Blocks of rows over one range of columns, which `strip` holds when it is resident."""
        wide: dict[Node, TileView] = {}
        if strip is not None:
            wide = self._hoist_columns(base, columns, bound)
        with self._row_block(base) as (row_base, rows, max_rows):
            lhs = None
            if self.plan.order != "stream":
                lhs = self.lhs.strip(row_base, rows, max_rows, self.plan.k_tiles)
            block = self.plan.column_block
            whole: TileView | None = None
            if self.reduces:
                width = known(columns, 0)
                whole = self.builder.sbuf((max_rows, width), self.dot.dtype)[:rows]
            for at, first, count, widest in self._column_blocks(
                row_base, start, columns, block, "n"
            ):
                product = self._product(at, lhs, strip, first, rows, max_rows, count, widest)
                if whole is not None:
                    part = whole[:, first : add(first, count)] if self.n is not None else whole
                    self._evictor().evict(part, product)
                    continue
                inside = {
                    node: view[:rows, first : add(first, count)] for node, view in wide.items()
                }
                self._results(at, rows, max_rows, count, widest, product, {**bound, **inside})
            if whole is not None:
                here = {**row_base, self.n: start} if self.n is not None else dict(row_base)
                width = known(columns, 1)
                kept = {node: view[:rows] for node, view in wide.items()}
                self._results(here, rows, max_rows, columns, width, whole, {**bound, **kept})

    def _columns_outside(self, base: Mapping[Axis, Index], bound: Mapping[Node, Value]) -> None:
        plan = self.plan
        rows = _size(self.m)
        strip = self.lhs.strip(
            {**base, self.m: 0} if self.m is not None else base, rows, known(rows, 1), plan.k_tiles
        )
        for at, _, count, widest in self._column_blocks(
            base, 0, _size(self.n), plan.column_block, "n"
        ):
            rhs = self.rhs.strip(at, count, widest, plan.k_tiles)
            for other in self.beside:
                start = at[self.n] if self.n is not None else 0
                own: dict[Axis, Index] = {} if other.n is None else {other.n: start}
                other._row_loop(own, {}, rhs, start, count)
            wide = self._hoist_columns(at, count, bound, widest)
            with self._row_block(at) as (row_base, many, max_rows):
                first = row_base[self.m] if self.m is not None else 0
                part = strip.rows(first, many)
                product = self._product(row_base, part, rhs, 0, many, max_rows, count, widest)
                inside = {node: view[:many] for node, view in wide.items()}
                self._results(row_base, many, max_rows, count, widest, product, {**bound, **inside})

    # Pieces -------------------------------------------------------------------------------------

    def _hoist_columns(
        self,
        base: Mapping[Axis, Index],
        columns: Index,
        bound: Mapping[Node, Value],
        widest: int = 0,
    ) -> dict[Node, TileView]:
        """Values of the epilogue that are the same for every row (a bias), for all columns."""
        varying = frozenset(a for a in (self.m,) if a is not None)
        before = _ancestors(self.dot) | {self.dot}
        needed: dict[Node, None] = {}
        for node in self.graph.nodes:
            if node in before or not self._after_dot(node):
                continue
            needed.update(
                (o, None) for o in node.operands if not self._after_dot(o) and o.op != "literal"
            )
        wanted = [n for n in needed if not n.axes & varying]
        rows = _size(self.m)
        if not wanted or (isinstance(rows, int) and rows <= self.target.partitions):
            return {}
        width = widest or known(columns, 0)
        share = self.target.sbuf_usable_bytes * ROW_SHARE / 2
        if not width or len(wanted) * width * 4 > share:
            return {}
        part = self.target.partitions
        free = () if self.n is None else (self.n,)
        region = Region(
            self.m, part, part, free, (columns,) if free else (), (width,) if free else (), base
        )
        emitter = Emitter(self.builder, self.graph, region, self.target, self.params, dict(bound))
        found: dict[Node, TileView] = {}
        for node in wanted:
            view = emitter.view(node)
            # Row scalars have no columns to cut; they stay with the blocks.
            if self.n is not None and self.n in node.axes:
                found[node] = view
        return found

    def _after_dot(self, node: Node) -> bool:
        """Whether the node depends on the product."""
        if node is self.dot:
            return True
        return any(self._after_dot(o) for o in node.operands)

    def _evictor(self) -> Emitter:
        region = Region(None, 1, 1, (), (), (), {})
        return Emitter(self.builder, self.graph, region, self.target, self.params)

    def _product(
        self,
        base: Mapping[Axis, Index],
        lhs: Strip | None,
        rhs: Strip | None,
        first: Index,
        rows: Index,
        max_rows: int,
        columns: Index,
        widest: int,
    ) -> TileView:
        """One PSUM tile of the product: rows of the block times columns of the block."""
        assert self.k is not None
        with self.builder.at(self.dot.source):
            psum = self.builder.psum((max_rows, widest), self.psum_dtype)
            result = Emitter.cut(psum, (rows, columns))
            part = self.target.matmul_max_contract
            with ExitStack() as stack:
                steps: Index = 0
                at = dict(base)
                for depth, axis in enumerate(self.k_loops):
                    index = stack.enter_context(self.builder.loop(f"c{depth}", 0, axis.size))
                    at[axis] = index
                    steps = add(steps, index)
                tiles = ceildiv(self.k.size, part)
                if tiles == 1:
                    tile: Index = 0
                    depth_rows: Index = self.k.size
                else:
                    tile = stack.enter_context(self.builder.loop("k", 0, tiles))
                    even = isinstance(self.k.size, int) and self.k.size % part == 0
                    rest = add(self.k.size, scale(mul(tile, part), -1))
                    depth_rows = part if even else minimum(part, rest)
                steps = add(steps, tile)
                if lhs is None:
                    lhs = self.lhs.tile(at, mul(tile, part), depth_rows, rows, max_rows)
                if rhs is None:
                    first = 0  # the tile is loaded for just these columns
                    rhs = self.rhs.tile(at, mul(tile, part), depth_rows, columns, widest)
                self.builder.nc_matmul(
                    result,
                    lhs.tile_view(tile, depth_rows, 0, rows),
                    rhs.tile_view(tile, depth_rows, first, columns),
                    accumulate=predicate(steps, ">", 0),
                )
        return result

    def _results(
        self,
        base: Mapping[Axis, Index],
        rows: Index,
        max_rows: int,
        columns: Index,
        widest: int,
        product: TileView,
        bound: Mapping[Node, Value],
    ) -> None:
        """The epilogue of one block and its stores."""
        free = () if self.n is None else (self.n,)
        region = Region(
            self.m,
            rows,
            max_rows,
            free,
            (columns,) if free else (),
            (widest,) if free else (),
            base,
        )
        emitter = Emitter(
            self.builder, self.graph, region, self.target, self.params, {**bound, self.dot: product}
        )
        if product.dtype != self.dot.dtype and emitter.uses[self.dot] > 1:
            emitter.in_sbuf(self.dot)  # rounds once: readers compare the product with itself
        for store in self.graph.stores:
            emitter.store(store)


def _largest(axes: Sequence[Axis]) -> Axis | None:
    best: Axis | None = None
    for axis in axes:
        if best is None or known(axis.size, 1 << 40) >= known(best.size, 1 << 40):
            best = axis
    return best


def _size(axis: Axis | None) -> Index:
    return 1 if axis is None else axis.size
