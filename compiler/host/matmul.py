"""The matrix product of ``nc_matmul`` as a library function, register blocked for the CPU found.

``void trnx_matmul_T(ptr c, i64 c_pitch, ptr a, i64 a_pitch, i64 a_step, ptr b, i64 b_pitch, i64
b_step, i64 b_panel, i64 m, i64 n, i64 k_tile, i64 k, i64 accumulate)``: c[m, n] (+)= a[k, m].T @
b[k, n]. Pitches are in elements; elements of a row are side by side, in b within panels of
``panel_columns`` columns that begin ``b_panel`` elements apart. The contracted dimension comes in
tiles of ``k_tile`` rows (the last may be shorter) that begin ``a_step`` and ``b_step`` elements
apart, so one call does what a loop of accumulating products says. Products and sums are fused in
the dtype ``T``, in ascending k.

A block of ``height`` rows and ``width`` vectors of c stays in registers while k runs. There are
functions for a few heights: rows are shared out evenly over tall blocks where that works out, else
over falling powers of two. Columns that do not fill a panel take functions of their own. A single
row of c over plain rows of b adds up whole rows, so that b is read in long runs.

Each block is a library of its own. A caller that knows its sizes asks for a product that contains
only the blocks those sizes take (`Needs`): compiling all of them takes longer than most kernels.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from trnx.compiler.host.cpu import Cpu
from trnx.compiler.host.emit import I64, PTR, Function, Module, Value, i64, vector_type
from trnx.compiler.host.memory import load_elements, store_elements, tail_mask
from trnx.compiler.host.types import DType
from trnx.core.dtypes import float32, float64

_ARGUMENTS = (
    (PTR, "c"),
    (I64, "c_pitch"),
    (PTR, "a"),
    (I64, "a_pitch"),
    (I64, "a_step"),
    (PTR, "b"),
    (I64, "b_pitch"),
    (I64, "b_step"),
)

_GROUP_ROWS = 1024
"""Rows of a and b that a block of c takes before the next block comes: a panel of that many rows
and the block's columns of a stay in the second-level cache."""


@dataclass(frozen=True, slots=True)
class Blocking:
    """Register blocks: ``width`` vectors, and the heights of full panels in falling order.

    The first ``tall`` heights are consecutive; rows that cut evenly into those use only them.
    """

    width: int
    heights: tuple[int, ...]
    tall: int


def blocking(cpu: Cpu) -> Blocking:
    """The largest block whose sums, one row of b and a broadcast fit the registers."""
    if cpu.registers >= 32 and cpu.vector_bytes == 64:
        return Blocking(2, (14, 13, 12, 8, 4, 2, 1), 3)
    return Blocking(4 if cpu.registers >= 32 else 2, (6, 5, 4, 2, 1), 3)


_FLAT_ROWS = 8
"""Rows of b that the product for a single row of c reads side by side."""

_PART_HEIGHTS = (8, 4, 2, 1)
"""Heights for panels that are not full."""


@dataclass(frozen=True, slots=True)
class Needs:
    """The blocks a product may take.

    Attributes:
        full: heights of blocks of whole panels, falling.
        part: heights of blocks of panels that are not full, falling.
        flat: whether c may have a single row.
    """

    full: tuple[int, ...]
    part: tuple[int, ...]
    flat: bool


def all_needs(cpu: Cpu) -> Needs:
    """Every block: for sizes that are not known."""
    return Needs(blocking(cpu).heights, _PART_HEIGHTS, True)


def needs_of(
    cpu: Cpu, dtype: DType, rows: Collection[int] | None, columns: Collection[int] | None
) -> Needs:
    """The blocks for products whose c has one of these numbers of rows and of columns.

    None stands for a number that is not known.
    """
    every, block, width = all_needs(cpu), blocking(cpu), panel_columns(cpu, dtype)
    full: set[int] = set()
    part: set[int] = set()
    for m in () if rows is None else rows:
        full.update(_heights_for(m, block))
        part.update(_greedy(m, _PART_HEIGHTS))
    wide = columns is None or any(n >= width for n in columns)
    ragged = columns is None or any(n % width for n in columns)
    if rows is None:
        full, part = set(every.full), set(every.part)
    return Needs(
        tuple(sorted(full, reverse=True)) if wide else (),
        tuple(sorted(part, reverse=True)) if ragged else (),
        rows is None or 1 in rows,
    )


def _heights_for(m: int, block: Blocking) -> set[int]:
    """Heights of the blocks that the driver cuts ``m`` rows of a full panel into."""
    blocks = max(1, -(-m // block.heights[0]))
    share, larger = divmod(m, blocks)
    if share >= block.heights[block.tall - 1]:
        return {share, share + 1} if larger else {share}
    return _greedy(m, block.heights)


def _greedy(rest: int, heights: Sequence[int]) -> set[int]:
    found = set()
    while rest > 0:
        height = next(h for h in heights if h <= rest)
        found.add(height)
        rest -= height
    return found


def matmul_symbol(dtype: DType, cpu: Cpu, needs: Needs | None = None) -> str:
    """Name of the product in ``dtype`` (fp32 or f64) that contains the blocks of ``needs``."""
    name = f"trnx_matmul_{'f64' if dtype == float64 else 'f32'}_{cpu.tag}"
    if needs is None or needs == all_needs(cpu):
        return name
    full = "_full" + "_".join(map(str, needs.full)) if needs.full else ""
    part = "_part" + "_".join(map(str, needs.part)) if needs.part else ""
    return f"{name}{full}{part}{'_flat' if needs.flat else ''}"


_SYMBOL: Final = re.compile(
    r"trnx_matmul_(f32|f64)_([0-9a-f]+)(?:_full([\d_]+?))?(?:_part([\d_]+?))?(_flat)?"
)
_MENTION: Final = re.compile(rb"(trnx_matmul_f(?:32|64)_[0-9a-z_]+)\0")


def products_in(code: bytes) -> set[str]:
    """Products that an object calls."""
    return {
        name
        for name in (found.decode() for found in _MENTION.findall(code))
        if _SYMBOL.fullmatch(name)
    }


def _meaning(symbol: str, cpu: Cpu) -> tuple[DType, Needs]:
    match = _SYMBOL.fullmatch(symbol)
    assert match is not None and match[2] == cpu.tag, symbol
    dtype = float64 if match[1] == "f64" else float32
    if match[3] is None and match[4] is None and match[5] is None:
        return dtype, all_needs(cpu)
    full, part = (tuple(map(int, found.split("_"))) if found else () for found in match.group(3, 4))
    return dtype, Needs(full, part, match[5] is not None)


def blocks_of(symbol: str, cpu: Cpu) -> tuple[str, ...]:
    """Libraries of the blocks that a product calls."""
    dtype, needs = _meaning(symbol, cpu)
    width = blocking(cpu).width
    full = (_block_name(cpu, dtype, height, width, True) for height in needs.full)
    part = (_block_name(cpu, dtype, height, width, False) for height in needs.part)
    return (*full, *part, *([_row_name(cpu, dtype)] if needs.flat else ()))


def matmul_text(symbol: str, cpu: Cpu) -> str:
    """LLVM assembly of a product; it calls its blocks."""
    dtype, needs = _meaning(symbol, cpu)
    module = Module(cpu)
    _emit_driver(module, symbol, dtype, needs)
    return module.text()


def block_text(symbol: str, cpu: Cpu) -> str:
    """LLVM assembly of a block."""
    match = _BLOCK.fullmatch(symbol)
    assert match is not None, symbol
    dtype = float64 if match[1] == "f64" else float32
    module = Module(cpu)
    if match[2] is None:
        _emit_row(module, dtype)
    else:
        _emit_block(module, dtype, int(match[2]), int(match[3]), full=match[4] is None)
    return module.text()


def is_block(symbol: str) -> bool:
    """Whether a symbol names a block."""
    return _BLOCK.fullmatch(symbol) is not None


def panel_columns(cpu: Cpu, dtype: DType) -> int:
    """Columns that one pass over k computes."""
    return blocking(cpu).width * _lanes(cpu, dtype)


def _lanes(cpu: Cpu, dtype: DType) -> int:
    return max(1, cpu.vector_bytes // dtype.itemsize)


@dataclass(frozen=True, slots=True)
class _Group:
    """Some tiles of the contracted dimension: where a and b begin, rows, whether sums go on."""

    a: Value
    b: Value
    k: Value
    accumulate: Value


def _emit_driver(module: Module, symbol: str, dtype: DType, needs: Needs) -> None:
    sizes = [(I64, n) for n in ("b_panel", "m", "n", "k_tile", "k", "accumulate")]
    f = Function(module, symbol, "void", [*_ARGUMENTS, *sizes])
    element = "double" if dtype == float64 else "float"
    tile, k = f.argument("k_tile"), f.argument("k")
    tiles = _ceil_div(f, k, tile)
    most = f.binary("sdiv", i64(_GROUP_ROWS), tile)
    most = f.select(f.icmp("slt", most, i64(1)), i64(1), most)
    groups = f.begin_loop(i64(0), _ceil_div(f, tiles, most))
    begun = f.binary("mul", groups.index, most)
    rows = f.binary("mul", most, tile)
    left = f.binary("sub", k, f.binary("mul", groups.index, rows))
    later = f.convert("zext", f.icmp("sgt", groups.index, i64(0)), I64)
    group = _Group(
        f.pointer(f.argument("a"), f.binary("mul", begun, f.argument("a_step")), element),
        f.pointer(f.argument("b"), f.binary("mul", begun, f.argument("b_step")), element),
        f.select(f.icmp("slt", left, rows), left, rows),
        f.binary("or", f.argument("accumulate"), later),
    )
    _emit_group(f, dtype, needs, element, group)
    f.end_loop(groups)
    f.finish()


def _ceil_div(f: Function, a: Value, b: Value) -> Value:
    return f.binary("sdiv", f.binary("add", a, f.binary("sub", b, i64(1))), b)


def _emit_group(f: Function, dtype: DType, needs: Needs, element: str, group: _Group) -> None:
    """All blocks of c for one group of tiles."""
    m, n = f.argument("m"), f.argument("n")
    block = blocking(f.cpu)
    columns = panel_columns(f.cpu, dtype)
    tallest, lowest = block.heights[0], block.heights[block.tall - 1]
    blocks = _ceil_div(f, m, i64(tallest))
    blocks = f.select(f.icmp("slt", blocks, i64(1)), i64(1), blocks)
    share = f.binary("sdiv", m, blocks)
    even = f.icmp("sge", share, i64(lowest))
    larger = f.binary("sub", m, f.binary("mul", share, blocks))
    first, start_panel = i64(0), group.b
    if needs.flat:
        first, start_panel = _emit_flat(f, dtype, columns, element, group)
    across = f.begin_loop(first, n, columns, carried=[start_panel])
    panel = across.carried[0]
    next_panel = f.pointer(panel, f.argument("b_panel"), element)
    left = f.binary("sub", n, across.index)
    full = f.icmp("sge", left, i64(columns))
    width = f.select(full, i64(columns), left)

    head, rows, leave = f.new_block("rows"), f.new_block(), f.new_block()
    before = f.block
    f.jump(head)
    f.place(head)
    row, count, following = (Value(I64, f"%{f.new_block('r')}") for _ in range(3))
    position = f.hold(2)
    f.branch(f.icmp("slt", row, m), rows, leave)
    f.place(rows)
    rest = f.binary("sub", m, row)
    extra = f.convert("zext", f.icmp("slt", count, larger), I64)
    spread = f.binary("add", share, extra)
    height = i64(0)
    if needs.part:
        height = _largest(f, rest, needs.part)
    if needs.full:
        whole_height = f.select(even, spread, _largest(f, rest, needs.full))
        height = f.select(full, whole_height, height) if needs.part else whole_height
    f.line(f"{following.text} = add i64 {row.text}, {height.text}")
    # What the next block needs is fetched meanwhile: more rows of a, or the next columns of b.
    more = f.icmp("slt", following, m)
    next_rows = f.pointer(group.a, following, element)
    start = f.binary("mul", row, f.argument("c_pitch"))
    arguments = [
        f.pointer(f.argument("c"), f.binary("add", start, across.index), element),
        f.argument("c_pitch"),
        f.pointer(group.a, row, element),
        f.argument("a_pitch"),
        f.argument("a_step"),
        panel,
        f.argument("b_pitch"),
        f.argument("b_step"),
        width,
        f.argument("k_tile"),
        group.k,
        group.accumulate,
        f.select(more, next_rows, next_panel),
        f.select(more, f.argument("a_pitch"), f.argument("b_pitch")),
        f.select(more, f.argument("a_step"), f.argument("b_step")),
    ]
    join = f.new_block()
    whole, part = f.new_block(), f.new_block()
    f.branch(full, whole, part)
    for label, heights, kind in ((whole, needs.full, True), (part, needs.part, False)):
        f.place(label)
        if not heights:  # no size this product is for comes here
            f.jump(join)
            continue
        targets = [f.new_block() for _ in heights]
        cases = " ".join(f"i64 {h}, label %{t}" for h, t in zip(heights, targets, strict=True))
        f.line(f"switch {height}, label %{targets[-1]} [ {cases} ]")
        for h, place in zip(heights, targets, strict=True):
            f.place(place)
            name = _block_name(f.cpu, dtype, h, block.width, kind)
            f.call_void(name, *arguments)
            f.jump(join)
    f.place(join)
    counted = f.binary("add", count, i64(1))
    f.jump(head)
    for k, (phi, after) in enumerate(((row, following), (count, counted))):
        text = f"phi i64 [ 0, %{before} ], [ {after.text}, %{join} ]"
        f.set_held(position + k, f"{phi.text} = {text}")
    f.place(leave)
    f.end_loop(across, [next_panel])


def _largest(f: Function, rest: Value, heights: tuple[int, ...]) -> Value:
    """The largest of ``heights`` (falling, ending in 1) that is at most ``rest``."""
    best = i64(heights[-1])
    for height in reversed(heights[:-1]):
        best = f.select(f.icmp("sge", rest, i64(height)), i64(height), best)
    return best


def _emit_flat(
    f: Function, dtype: DType, columns: int, element: str, group: _Group
) -> tuple[Value, Value]:
    """The product for one row, as far as whole vectors go: (columns done, b from there on)."""
    lanes = _lanes(f.cpu, dtype)
    single = f.icmp("eq", f.argument("m"), i64(1))
    plain = f.icmp("eq", f.argument("b_panel"), i64(columns))
    whole = f.binary("sub", f.argument("n"), f.binary("srem", f.argument("n"), i64(lanes)))
    done = f.select(f.binary("and", single, plain), whole, i64(0))
    work, after = f.new_block(), f.new_block()
    f.branch(f.icmp("sgt", done, i64(0)), work, after)
    f.place(work)
    f.call_void(
        _row_name(f.cpu, dtype),
        f.argument("c"),
        group.a,
        f.argument("a_pitch"),
        f.argument("a_step"),
        group.b,
        f.argument("b_pitch"),
        f.argument("b_step"),
        done,
        f.argument("k_tile"),
        group.k,
        group.accumulate,
    )
    f.jump(after)
    f.place(after)
    return done, f.pointer(group.b, done, element)


def _row_name(cpu: Cpu, dtype: DType) -> str:
    return f"{matmul_symbol(dtype, cpu)}_row"


def _emit_row(module: Module, dtype: DType) -> None:
    """c[n] for n a multiple of the vector's lanes: whole rows of b are added up."""
    names = [name for name in _ARGUMENTS if name[1] != "c_pitch"]
    sizes = [(I64, n) for n in ("n", "k_tile", "k", "accumulate")]
    f = Function(module, _row_name(module.cpu, dtype), "void", [*names, *sizes])
    lanes = _lanes(f.cpu, dtype)
    element = "double" if dtype == float64 else "float"
    vector = vector_type(element, lanes)
    done = f.argument("n")
    fresh = f.icmp("eq", f.argument("accumulate"), i64(0))
    clear = f.begin_loop(i64(0), f.select(fresh, done, i64(0)), lanes)
    f.store(f.number(0.0, vector), f.pointer(f.argument("c"), clear.index, element))
    f.end_loop(clear)
    tile = f.argument("k_tile")
    tiles = f.begin_loop(i64(0), _ceil_div(f, f.argument("k"), tile))
    a = f.pointer(f.argument("a"), f.binary("mul", tiles.index, f.argument("a_step")), element)
    b = f.pointer(f.argument("b"), f.binary("mul", tiles.index, f.argument("b_step")), element)
    left = f.binary("sub", f.argument("k"), f.binary("mul", tiles.index, tile))
    k = f.select(f.icmp("slt", left, tile), left, tile)
    grouped = f.binary("and", k, i64(-_FLAT_ROWS))
    for low, high, rows in ((i64(0), grouped, _FLAT_ROWS), (grouped, k, 1)):
        outer = f.begin_loop(low, high, rows)
        lines, factors = [], []
        for r in range(rows):
            at = f.binary("add", outer.index, i64(r))
            scalar = f.pointer(a, f.binary("mul", at, f.argument("a_pitch")), element)
            factors.append(f.splat(f.load(element, scalar), lanes))
            lines.append(f.pointer(b, f.binary("mul", at, f.argument("b_pitch")), element))
        inner = f.begin_loop(i64(0), done, lanes)
        place = f.pointer(f.argument("c"), inner.index, element)
        total = f.load(vector, place)
        for line, factor in zip(lines, factors, strict=True):
            total = fused(f, factor, f.load(vector, f.pointer(line, inner.index, element)), total)
        f.store(total, place)
        f.end_loop(inner)
        f.end_loop(outer)
    f.end_loop(tiles)
    f.finish()


def _block_name(cpu: Cpu, dtype: DType, height: int, width: int, full: bool) -> str:
    return f"{matmul_symbol(dtype, cpu)}_{height}x{width}{'' if full else '_part'}"


_BLOCK: Final = re.compile(r"trnx_matmul_(f32|f64)_[0-9a-f]+_(?:(\d+)x(\d+)(_part)?|row)")


def _emit_block(module: Module, dtype: DType, height: int, width: int, full: bool) -> None:
    """c[height, n] for n equal to ``width`` vectors, or (not ``full``) for any smaller n."""
    sizes = [(I64, "n"), (I64, "k_tile"), (I64, "k"), (I64, "accumulate")]
    sizes += [(PTR, "ahead"), (I64, "ahead_pitch"), (I64, "ahead_step")]
    name = _block_name(module.cpu, dtype, height, width, full)
    f = Function(module, name, "void", [*_ARGUMENTS, *sizes])
    lanes = _lanes(module.cpu, dtype)
    if full or module.cpu.masked:
        _Block(f, dtype, height, width, lanes, masked=not full).emit(i64(0))
    else:
        column = f.begin_loop(i64(0), f.argument("n"))
        _Block(f, dtype, height, 1, 1, masked=False).emit(column.index)
        f.end_loop(column)
    f.finish()


@dataclass(slots=True)
class _Block:
    """Emits one register block."""

    f: Function
    dtype: DType
    height: int
    width: int
    lanes: int
    masked: bool

    def emit(self, column: Value) -> None:
        """c[height, width·lanes] from ``column`` on."""
        f = self.f
        element = self._element
        offsets = [f.binary("add", column, i64(v * self.lanes)) for v in range(self.width)]
        masks: list[Value | None] = [None] * self.width
        if self.masked:
            n = f.argument("n")
            masks = [tail_mask(f, i64(v * self.lanes), n, self.lanes) for v in range(self.width)]
        fresh, old, start = f.new_block(), f.new_block(), f.new_block()
        f.branch(f.icmp("eq", f.argument("accumulate"), i64(0)), fresh, old)
        f.place(old)
        loaded = [
            load_elements(f, element, place, 1, self.lanes, masks[v])
            for line in self._places(offsets)
            for v, place in enumerate(line)
        ]
        before = f.block
        f.jump(start)
        f.place(fresh)
        f.jump(start)
        f.place(start)
        vector = vector_type(element, self.lanes)
        zero = f.number(0.0, vector)
        sums = [f.phi(vector, [(value, before), (zero, fresh)]) for value in loaded]
        tile, k = f.argument("k_tile"), f.argument("k")
        walks = [f.argument(name) for name in ("a", "b", "ahead")]
        tiles = f.begin_loop(i64(0), _ceil_div(f, k, tile), carried=[*sums, *walks])
        places = tiles.carried[len(sums) :]
        left = f.binary("sub", k, f.binary("mul", tiles.index, tile))
        rows = f.select(f.icmp("slt", left, tile), left, tile)
        loop = f.begin_loop(i64(0), rows, carried=tiles.carried[: len(sums)])
        after = f.end_loop(loop, self._step(loop.index, places, loop.carried, offsets, masks))
        moved = [
            f.pointer(place, f.argument(f"{name}_step"), element)
            for place, name in zip(places, ("a", "b", "ahead"), strict=True)
        ]
        final = f.end_loop(tiles, [*after, *moved])
        at = iter(final)
        for line in self._places(offsets):
            for v, place in enumerate(line):
                store_elements(f, next(at), place, 1, self.lanes, masks[v])

    @property
    def _element(self) -> str:
        return "double" if self.dtype == float64 else "float"

    def _places(self, offsets: Sequence[Value]) -> Iterator[list[Value]]:
        """Addresses in c row by row. Made anew where needed: kept ones would fill registers."""
        f, row = self.f, self.f.argument("c")
        for r in range(self.height):
            if r:
                row = f.pointer(row, f.argument("c_pitch"), self._element)
            yield [f.pointer(row, offset, self._element) for offset in offsets]

    def _step(
        self,
        k: Value,
        places: Sequence[Value],
        sums: Sequence[Value],
        offsets: Sequence[Value],
        masks: Sequence[Value | None],
    ) -> list[Value]:
        """The sums after adding column k of a times row k of b."""
        f, element = self.f, self._element
        a = f.pointer(places[0], f.binary("mul", k, f.argument("a_pitch")), element)
        b = f.pointer(places[1], f.binary("mul", k, f.argument("b_pitch")), element)
        line = [
            load_elements(f, element, f.pointer(b, offset, element), 1, self.lanes, mask)
            for offset, mask in zip(offsets, masks, strict=True)
        ]
        ahead = f.binary("mul", k, f.argument("ahead_pitch"))
        soon = f.pointer(places[2], ahead, element)
        for byte in range(0, self.width * self.lanes * self.dtype.itemsize, 64):
            f.prefetch(f.pointer(soon, i64(byte), "i8"))
        after: list[Value] = []
        for r in range(self.height):
            scalar = f.splat(f.load(element, f.pointer(a, i64(r), element)), self.lanes)
            for v in range(self.width):
                after.append(fused(f, scalar, line[v], sums[r * self.width + v]))
        return after


def fused(f: Function, a: Value, b: Value, c: Value) -> Value:
    """``a·b + c``, fused where the CPU can."""
    if f.cpu.fma:
        return f.intrinsic("fma", a.type, a, b, c)
    return f.binary("fadd", f.binary("fmul", a, b), c)
