"""Row kernels: elementwise graphs with row reductions, one pass over HBM.

Rows lie on the partitions, the reduced axes on the free dimensions. When a row with everything that
is alive beside it does not fit SBUF, the row is cut into chunks and walked once per level of
reductions (maximum, then sum, then output), with one running number per row and reduction; values
in between are computed again. Graphs without reductions are cut freely into ``[128, F]`` tiles.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from trnx.compiler.kernels.blocks import (
    MATMUL_ROWS,
    block_loop,
    chunks,
    flat_width,
    index_symbols,
    known,
    live_bytes,
    live_columns,
)
from trnx.compiler.kernels.emitter import Emitter, Params, Region, Value
from trnx.compiler.kernels.gather import GatherPlan, plan_gathers
from trnx.compiler.kernels.group import Graph, Node, Store, merge_axes, split_axis
from trnx.compiler.kernels.reduction import OPERATORS, accumulator_dtype, identity_of
from trnx.compiler.kernels.space import Axis
from trnx.compiler.targets import Target
from trnx.compiler.tile.build import KernelBuilder
from trnx.compiler.tile.expr import Index, floordiv, minimum, mod, mul
from trnx.compiler.tile.ir import Kernel
from trnx.compiler.tile.views import TileView
from trnx.core import Source, Var

RUN_TIME_WIDTH = 512
"""Elements per partition when the size of an axis is only known at run time."""


@dataclass(frozen=True, slots=True)
class LoweredKernel:
    """A kernel and the variables its parameters stand for, in parameter order."""

    kernel: Kernel
    variables: tuple[Var, ...]


def ordered_axes(graph: Graph) -> list[Axis]:
    """All axes, outer to inner: as the results lie in memory, then as the loads do."""
    order: dict[Axis, None] = {}
    for store in sorted(graph.stores, key=lambda s: -len(s.shape_axes)):
        order.update(dict.fromkeys(store.shape_axes))
    for load in sorted(graph.loads, key=lambda n: -len(n.axes)):
        assert load.access is not None
        strides = load.access.strides
        rest = [a for a in strides if a not in order]
        rest.sort(key=lambda a: -known(strides[a], 1 << 62))
        order.update(dict.fromkeys(rest))
    order.update(dict.fromkeys(a for n in graph.nodes for a in sorted_axes(n)))
    return list(order)


def sorted_axes(node: Node) -> list[Axis]:
    """Axes of a node without a meaning of their order, but always in the same one."""
    strides = node.access.strides if node.access is not None else {}
    return list(strides) if strides else sorted(node.axes | node.reduced, key=lambda a: str(a.size))


def kernel_name(graph: Graph) -> str:
    """A readable name from the operations: ``exp_sub_reduce_max``."""
    names: dict[str, None] = {}
    for node in graph.nodes:
        if node.op not in ("load", "literal", "iota", "convert", "copy", "stop_gradient"):
            names.setdefault(node.op, None)
    listed = list(names)
    if not listed:
        return "copy"
    text = "_".join(listed[:4])
    return text if len(listed) <= 4 else f"{text}_{len(listed) - 4}more"


class RowLowering:
    """Lowers one graph without a contraction; see the module docstring."""

    def __init__(self, graph: Graph, target: Target, source: Source | None, name: str = "") -> None:
        order = ordered_axes(graph)
        outer = [a for a in order if a not in graph.reduced]
        inner = [a for a in order if a in graph.reduced]
        self.graph, (self.outer, self.reduced) = merge_axes(graph, (outer, inner))
        self.target = target
        self.builder = KernelBuilder(name or kernel_name(graph), target.name, source=source)
        for register in sorted(index_symbols(self.graph, [*self.outer, *self.reduced])):
            self.builder.register_argument(register)
        self.params = Params(self.builder, {})

    def lower(self) -> LoweredKernel:
        """The kernel."""
        emit_graph(self.builder, self.graph, self.outer, self.reduced, self.target, self.params)
        return LoweredKernel(self.builder.finish(), self.params.variables)


def lower_row(
    graph: Graph, target: Target, source: Source | None = None, name: str = ""
) -> LoweredKernel:
    """Lower a graph without a contraction to one kernel."""
    return RowLowering(graph, target, source, name).lower()


def emit_graph(
    builder: KernelBuilder,
    graph: Graph,
    outer: Sequence[Axis],
    reduced: Sequence[Axis],
    target: Target,
    params: Params,
) -> None:
    """Emit the whole loop nest of a graph without a contraction.

    Args:
        builder: receives the instructions.
        graph: with merged axes.
        outer: axes that are not reduced, outer to inner.
        reduced: axes of the row reductions, outer to inner.
        target: the hardware table's row.
        params: HBM parameters of the kernel.
    """
    gathers = plan_gathers(graph, outer)
    if gathers is not None:
        free = list(reduced) or ([gathers.free] if gathers.free is not None else [])
        rest = [a for a in outer if a not in free]
        _Nest(builder, graph, target, params).rows(rest, free, gathers)
        return
    if reduced:
        _Nest(builder, graph, target, params).rows(list(outer), list(reduced))
        return
    if not outer:
        _Nest(builder, graph, target, params).rows([], [])
        return
    if len(outer) == 1:
        _emit_flat(builder, graph, outer[0], target, params)
        return
    nest = _Nest(builder, graph, target, params)
    nest.rows(list(outer[:-1]), list(outer[-1:]))


def _emit_flat(
    builder: KernelBuilder, graph: Graph, axis: Axis, target: Target, params: Params
) -> None:
    """An elementwise graph over one axis: rows of F elements, then what is left."""
    limit = free_limit(graph, target)
    if isinstance(axis.size, int):
        width = flat_width(axis.size, limit)
        rest: Index = axis.size % width
    else:
        width = min(limit, RUN_TIME_WIDTH)
        rest = mod(axis.size, width)
    if width == axis.size:
        _Nest(builder, graph, target, params).rows([], [axis])
        return
    whole, row_axis, free_axis = split_axis(graph, axis, width)
    _Nest(builder, whole, target, params).rows([row_axis], [free_axis])
    if rest == 0:
        return
    done = mul(floordiv(axis.size, width), width)
    tail = _Nest(builder, graph, target, params)
    with ExitStack() as stack:
        if not isinstance(rest, int):  # nothing is left when the size divides
            stack.enter_context(builder.loop("rest", 0, minimum(1, rest)))
        tail.block(Region(None, 1, 1, (axis,), (rest,), (known(rest, width),), {axis: done}), {})


def free_limit(graph: Graph, target: Target) -> int:
    """Largest power of two of free elements for which two buffers of every live tile fit."""
    axes = sorted(graph.axes, key=lambda a: -known(a.size, 1 << 40))[:1]
    per_element = max(1.0, live_columns(graph, dict.fromkeys(axes, 256)))
    width = 128
    while width < 4096 and 2 * width * per_element * 2 <= target.working_set_bytes:
        width *= 2
    return width


class _Nest:
    """Loops around one region shape of a graph."""

    def __init__(
        self, builder: KernelBuilder, graph: Graph, target: Target, params: Params
    ) -> None:
        self.builder = builder
        self.graph = graph
        self.target = target
        self.params = params

    # Loops --------------------------------------------------------------------------------------

    def rows(self, outer: list[Axis], free: list[Axis], gathers: GatherPlan | None = None) -> None:
        """Loop over `outer`, the largest of them on the partitions; `free` on the free axes."""
        partition = self._partition_axis(outer) if gathers is None else gathers.partition
        loops = [axis for axis in outer if axis is not partition]
        widths = {axis: known(axis.size, RUN_TIME_WIDTH) for axis in free}
        chunk = self._chunk(free, widths)
        max_rows = 1
        if partition is not None:
            max_rows = min(MATMUL_ROWS, known(partition.size, MATMUL_ROWS))
        counts = tuple(axis.size for axis in free)
        region = Region(
            partition, max_rows, max_rows, tuple(free), counts, tuple(widths.values()), {}
        )
        bound: dict[Node, Value] = {}
        with ExitStack() as stack:
            base: dict[Axis, Index] = {}
            for depth, axis in enumerate(loops):
                if chunk is None:
                    bound |= self._hoist(region, [*loops[depth:], partition], bound)
                index = stack.enter_context(self.builder.loop(f"i{depth}", 0, axis.size))
                base[axis] = index
                region = replace(region, base=dict(base))
            blocks = partition is not None and known(partition.size, 1 << 40) > MATMUL_ROWS
            if blocks and chunk is None:
                bound |= self._hoist(region, [partition], bound)
            if partition is not None:
                start, count = stack.enter_context(
                    block_loop(self.builder, "i", partition.size, MATMUL_ROWS)
                )
                base[partition] = start
                region = replace(region, base=dict(base), rows=count)
            if chunk is None:
                self.block(region, bound)
            else:
                self.phases(region, chunk)

    def _partition_axis(self, outer: Sequence[Axis]) -> Axis | None:
        best: Axis | None = None
        for axis in outer:
            if best is None or known(axis.size, 1 << 40) >= min(known(best.size, 1 << 40), 128):
                best = axis
        return best

    def _chunk(self, free: list[Axis], widths: Mapping[Axis, int]) -> int | None:
        """Elements per chunk of the last free axis, None when whole rows fit."""
        symbolic = any(not isinstance(axis.size, int) for axis in free)
        if not symbolic:
            room = (
                self.target.sbuf_usable_bytes
                if self.graph.reduced
                else (self.target.working_set_bytes // 2)
            )
            if live_bytes(self.graph, widths) <= room * 7 // 8:
                return None
        if not free:
            return None
        last = free[-1]
        limit = RUN_TIME_WIDTH if symbolic else free_limit(self.graph, self.target)
        if isinstance(last.size, int):
            if last.size <= limit:
                return last.size
            return flat_width(last.size, limit) if last.size > limit else last.size
        return limit

    def _hoist(
        self, region: Region, loops: Sequence[Axis | None], bound: Mapping[Node, Value]
    ) -> dict[Node, Value]:
        """Emit what no coming loop changes and a node inside them needs."""
        varying = frozenset(a for a in loops if a is not None)
        needed: dict[Node, None] = {}
        for node in self.graph.nodes:
            if node.axes & varying:
                needed.update((o, None) for o in node.operands if not o.axes & varying)
        for store in self.graph.stores:
            needed[store.node] = None
        wanted = [
            n for n in needed if n.op != "literal" and n not in bound and not n.axes & varying
        ]
        if not wanted:
            return {}
        emitter = Emitter(self.builder, self.graph, region, self.target, self.params, dict(bound))
        return {node: emitter.view(node) for node in wanted}

    # Blocks -------------------------------------------------------------------------------------

    def block(self, region: Region, bound: Mapping[Node, Value]) -> None:
        """Everything for one region."""
        emitter = Emitter(self.builder, self.graph, region, self.target, self.params, bound)
        for store in self.graph.stores:
            emitter.store(store)

    def phases(self, region: Region, chunk: int) -> None:
        """One walk over the chunks per level of reductions, then one for the results."""
        levels = reduction_levels(self.graph)
        free = frozenset(region.free)
        bound: dict[Node, Value] = {}
        row_region = replace(region, free=(), counts=(), max_counts=())
        for level in range(max(levels.values(), default=0)):
            wanted = [n for n in self.graph.nodes if n.is_reduction and levels[n] == level + 1]
            bound |= self._row_values(row_region, free, bound, levels, level)
            bound |= self._accumulate(region, chunk, wanted, bound)
        top = max(levels.values(), default=0)
        bound |= self._row_values(row_region, free, bound, levels, top)
        wide = [s for s in self.graph.stores if frozenset(s.shape_axes) & free]
        narrow = [s for s in self.graph.stores if not frozenset(s.shape_axes) & free]
        self._stores(row_region, narrow, bound)
        if wide:
            for part in self._parts(region, chunk):
                self._stores(part, wide, bound)

    def _parts(self, region: Region, chunk: int):  # type: ignore[no-untyped-def]
        """The region cut into chunks: outer free axes one index at a time."""
        *outer, last = region.free
        with ExitStack() as stack:
            base = dict(region.base)
            for depth, axis in enumerate(outer):
                base[axis] = stack.enter_context(self.builder.loop(f"j{depth}", 0, axis.size))
            for start, count, width in chunks(self.builder, "j", last.size, chunk):
                yield replace(
                    region,
                    free=(last,),
                    counts=(count,),
                    max_counts=(width,),
                    base={**base, last: start},
                )

    def _row_values(
        self,
        region: Region,
        free: frozenset[Axis],
        bound: Mapping[Node, Value],
        levels: Mapping[Node, int],
        level: int,
    ) -> dict[Node, Value]:
        """Row scalars that nodes over the row need, computed once per row block."""
        emitter = Emitter(self.builder, self.graph, region, self.target, self.params, bound)
        made: dict[Node, Value] = {}
        for node in self.graph.nodes:
            if not node.axes & free:
                continue
            for operand in node.operands:
                ready = not operand.axes & free and levels[operand] <= level
                if ready and operand.op != "literal" and operand not in bound:
                    made[operand] = emitter.view(operand)
        return made

    def _accumulate(
        self, region: Region, chunk: int, wanted: Sequence[Node], bound: Mapping[Node, Value]
    ) -> dict[Node, Value]:
        totals: dict[Node, TileView] = {}
        for node in wanted:
            dtype = accumulator_dtype(node.dtype)
            total = self.builder.sbuf((region.max_rows, 1), dtype)[: region.rows]
            self.builder.memset(total, identity_of(node.op, dtype))
            totals[node] = total
        for part in self._parts(region, chunk):
            emitter = Emitter(self.builder, self.graph, part, self.target, self.params, bound)
            for node in wanted:
                emitter.out_dtypes[node] = totals[node].dtype
            for node in wanted:
                share = emitter.as_column(emitter.view(node))
                self.builder.tensor_tensor(totals[node], totals[node], share, op=OPERATORS[node.op])
        rounded: dict[Node, Value] = {}
        for node, total in totals.items():
            if total.dtype == node.dtype:
                rounded[node] = total
            else:
                result = self.builder.sbuf((region.max_rows, 1), node.dtype)[: region.rows]
                self.builder.tensor_copy(result, total)
                rounded[node] = result
        return rounded

    def _stores(self, region: Region, stores: Sequence[Store], bound: Mapping[Node, Value]) -> None:
        if not stores:
            return
        emitter = Emitter(self.builder, self.graph, region, self.target, self.params, bound)
        for store in stores:
            emitter.store(store)


def reduction_levels(graph: Graph) -> dict[Node, int]:
    """How many reductions lie below each node, on the longest way."""
    levels: dict[Node, int] = {}
    for node in graph.nodes:
        below = max((levels[o] for o in node.operands), default=0)
        levels[node] = below + 1 if node.is_reduction else below
    return levels
