"""Cutting axes into blocks: sizes, loops with tails, the SBUF a region needs.

Sizes that do not divide become a shorter last block, never a mask: rows of a block are
``min(128, size - 128·i)``, and the rest of a cut free axis is a block of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from trnx.compiler.kernels.group import Graph, Node
from trnx.compiler.kernels.space import Axis
from trnx.compiler.tile.build import KernelBuilder
from trnx.compiler.tile.expr import Index, ceildiv, floordiv, minimum, mod, mul, symbols

MATMUL_ROWS = 128


def known(size: Index, default: int) -> int:
    """A size as a number: itself, or `default` when it is only known at run time."""
    return size if isinstance(size, int) else default


@contextmanager
def block_loop(
    builder: KernelBuilder, name: str, size: Index, block: int
) -> Iterator[tuple[Index, Index]]:
    """Loop over blocks of an axis; yields first index and count of a block.

    One block needs no loop.
    """
    if isinstance(size, int) and size <= block:
        yield 0, size
        return
    with builder.loop(name, 0, ceildiv(size, block)) as i:
        start = mul(i, block)
        even = isinstance(size, int) and size % block == 0
        yield start, block if even else minimum(block, size - start)


def chunks(
    builder: KernelBuilder, name: str, size: Index, block: int
) -> Iterator[tuple[Index, Index, int]]:
    """Whole blocks in a loop, then the rest: (first index, count, largest count) of each.

    Use it as a ``for``; the body is emitted once per kind of block, so that the counts of a static
    axis are constants.
    """
    if isinstance(size, int):
        whole, rest = divmod(size, block)
        if whole == 1:
            yield 0, block, block
        elif whole:
            with builder.loop(name, 0, whole) as i:
                yield mul(i, block), block, block
        if rest:
            yield whole * block, rest, rest
        return
    with builder.loop(name, 0, ceildiv(size, block)) as i:
        start = mul(i, block)
        yield start, minimum(block, size - start), block


def live_bytes(graph: Graph, widths: Mapping[Axis, int]) -> int:
    """Most bytes per partition alive at one time when a region spans `widths` of the free axes.

    Values are taken in the order of the graph; each lives until its last user.
    """

    def size(node: Node) -> int:
        if node.op in ("literal", "dot_general"):
            return 0
        total = node.dtype.itemsize
        for axis, width in widths.items():
            if axis in node.axes:
                total *= width
        return total

    last: dict[Node, int] = dict.fromkeys(graph.nodes, 0)
    for position, node in enumerate(graph.nodes):
        last[node] = position
        last.update((o, position) for o in node.operands if o in last)
    for store in graph.stores:
        last[store.node] = max(last[store.node], len(graph.nodes))
    ending: dict[int, list[Node]] = {}
    for node, position in last.items():
        ending.setdefault(position, []).append(node)
    now = peak = 0
    for position, node in enumerate(graph.nodes):
        now += size(node)
        peak = max(peak, now)
        now -= sum(size(n) for n in ending.get(position, ()))
    return peak


def live_columns(graph: Graph, widths: Mapping[Axis, int]) -> float:
    """`live_bytes` per element of the widest free block."""
    total = 1
    for width in widths.values():
        total *= width
    return live_bytes(graph, widths) / max(1, total)


def flat_width(size: int, limit: int) -> int:
    """Elements per partition for a dense run of `size` elements.

    Spreads the run over 128 partitions while a row keeps at least 128 elements (512 bytes of fp32,
    where a DMA row is no longer dominated by its overhead), and at most `limit`. A divisor of the
    size is preferred, so that no rest is left.
    """
    wanted = max(128, min(limit, -(-size // MATMUL_ROWS)))
    if size <= wanted:
        return size
    for width in range(wanted, wanted // 2, -1):
        if size % width == 0:
            return width
    for width in range(wanted, min(limit, 2 * wanted) + 1):
        if size % width == 0:
            return width
    return wanted


def index_symbols(graph: Graph, axes: Sequence[Axis]) -> frozenset[str]:
    """Registers that sizes, strides and offsets of a graph read."""
    found: set[str] = set()
    for axis in axes:
        found |= symbols(axis.size)
    for strides, offset in graph.accesses():
        found |= symbols(offset)
        for stride in strides.values():
            found |= symbols(stride)
    return frozenset(found)


def row_count(size: Index) -> Index:
    """Blocks of 128 rows that hold `size` rows."""
    return ceildiv(size, MATMUL_ROWS)


def split_counts(size: Index, inner: int) -> tuple[Index, Index]:
    """``(size // inner, size % inner)``."""
    return floordiv(size, inner), mod(size, inner)
