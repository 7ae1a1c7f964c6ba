"""The matrix product of ``nc_matmul`` as a library function, register blocked for the CPU found.

``void trnx_matmul_T(ptr c, i64 c_pitch, ptr a, i64 a_pitch, ptr b, i64 b_pitch, i64 m, i64 n,
i64 k, i64 accumulate)``: c[m, n] (+)= a[k, m].T @ b[k, n]. Pitches are in elements; elements of a
row are side by side. Products and sums are fused in the dtype ``T``, in ascending k.

A block of ``height`` rows and ``width`` vectors of c stays in registers while k runs. The rows are
shared out evenly over the least number of blocks, so there is one function per height.
"""

from __future__ import annotations

from dataclasses import dataclass

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
    (PTR, "b"),
    (I64, "b_pitch"),
)


@dataclass(frozen=True, slots=True)
class Blocking:
    """Rows and vectors of the register block."""

    height: int
    width: int


def blocking(cpu: Cpu) -> Blocking:
    """The largest block whose sums, one row of b and a broadcast fit the registers."""
    if cpu.registers >= 32:
        return Blocking(14, 2) if cpu.vector_bytes == 64 else Blocking(6, 4)
    return Blocking(6, 2)


def matmul_symbol(dtype: DType, cpu: Cpu) -> str:
    """Name of the function for ``dtype`` (fp32 or f64)."""
    return f"trnx_matmul_{'f64' if dtype == float64 else 'f32'}_{cpu.tag}"


def emit_matmul(module: Module, dtype: DType) -> None:
    """Add the matrix product in ``dtype`` to a module."""
    assert dtype in (float32, float64)
    block = blocking(module.cpu)
    for height in range(1, block.height + 1):
        _emit_block(module, dtype, height, block.width)
    _emit_driver(module, dtype, block)


def _lanes(cpu: Cpu, dtype: DType) -> int:
    return max(1, cpu.vector_bytes // dtype.itemsize)


def _emit_driver(module: Module, dtype: DType, block: Blocking) -> None:
    sizes = [(I64, "m"), (I64, "n"), (I64, "k"), (I64, "accumulate")]
    f = Function(module, matmul_symbol(dtype, module.cpu), "void", [*_ARGUMENTS, *sizes])
    element = "double" if dtype == float64 else "float"
    m, n = f.argument("m"), f.argument("n")
    columns = block.width * _lanes(module.cpu, dtype)
    blocks = f.binary("sdiv", f.binary("add", m, i64(block.height - 1)), i64(block.height))
    some = f.icmp("sgt", m, i64(0))
    work, done = f.new_block(), f.new_block()
    f.branch(some, work, done)
    f.place(work)
    small = f.binary("sdiv", m, blocks)
    larger = f.binary("sub", m, f.binary("mul", small, blocks))
    across = f.begin_loop(i64(0), n, columns)
    left = f.binary("sub", n, across.index)
    width = f.select(f.icmp("slt", left, i64(columns)), left, i64(columns))
    panel = f.pointer(f.argument("b"), across.index, element)
    down = f.begin_loop(i64(0), blocks, carried=[i64(0)])
    row = down.carried[0]
    extra = f.convert("zext", f.icmp("slt", down.index, larger), I64)
    height = f.binary("add", small, extra)
    start = f.binary("mul", row, f.argument("c_pitch"))
    target = f.pointer(f.argument("c"), f.binary("add", start, across.index), element)
    source = f.pointer(f.argument("a"), row, element)
    arguments = [
        target,
        f.argument("c_pitch"),
        source,
        f.argument("a_pitch"),
        panel,
        f.argument("b_pitch"),
        width,
        f.argument("k"),
        f.argument("accumulate"),
    ]
    labels = [f.new_block() for _ in range(block.height)]
    join = f.new_block()
    cases = " ".join(f"i64 {h + 1}, label %{label}" for h, label in enumerate(labels))
    f.line(f"switch {height}, label %{labels[0]} [ {cases} ]")
    for h, label in enumerate(labels):
        f.place(label)
        text = ", ".join(map(str, arguments))
        f.line(f"call void @{_block_name(module.cpu, dtype, h + 1)}({text})")
        f.jump(join)
    f.place(join)
    f.end_loop(down, [f.binary("add", row, height)])
    f.end_loop(across)
    f.jump(done)
    f.place(done)
    f.finish()


def _block_name(cpu: Cpu, dtype: DType, height: int) -> str:
    return f"{matmul_symbol(dtype, cpu)}_{height}"


def _emit_block(module: Module, dtype: DType, height: int, width: int) -> None:
    """c[height, n] for n up to ``width`` vectors."""
    sizes = [(I64, "n"), (I64, "k"), (I64, "accumulate")]
    f = Function(
        module, _block_name(module.cpu, dtype, height), "void", [*_ARGUMENTS, *sizes], internal=True
    )
    lanes = _lanes(module.cpu, dtype)
    full = f.icmp("eq", f.argument("n"), i64(width * lanes))
    if module.cpu.masked:
        _emit_sums(f, dtype, height, width, lanes, masked=True)
        f.finish()
        return
    whole, part, done = f.new_block(), f.new_block(), f.new_block()
    f.branch(full, whole, part)
    f.place(whole)
    _emit_sums(f, dtype, height, width, lanes, masked=False)
    f.jump(done)
    f.place(part)
    column = f.begin_loop(i64(0), f.argument("n"))
    _emit_sums(f, dtype, height, 1, 1, masked=False, column=column.index)
    f.end_loop(column)
    f.jump(done)
    f.place(done)
    f.finish()


def _emit_sums(
    f: Function,
    dtype: DType,
    height: int,
    width: int,
    lanes: int,
    masked: bool,
    column: Value | None = None,
) -> None:
    element = "double" if dtype == float64 else "float"
    vector = vector_type(element, lanes)
    first = i64(0) if column is None else column
    offsets = [f.binary("add", first, i64(v * lanes)) for v in range(width)]
    masks: list[Value | None] = [None] * width
    if masked:
        masks = [tail_mask(f, i64(v * lanes), f.argument("n"), lanes) for v in range(width)]
    c = f.argument("c")
    rows = [
        f.pointer(c, f.binary("mul", f.argument("c_pitch"), i64(r)), element) if r else c
        for r in range(height)
    ]
    places = [[f.pointer(row, offset, element) for offset in offsets] for row in rows]
    fresh, old, start = f.new_block(), f.new_block(), f.new_block()
    f.branch(f.icmp("eq", f.argument("accumulate"), i64(0)), fresh, old)
    f.place(old)
    loaded = [
        load_elements(f, element, place, 1, lanes, masks[v])
        for line in places
        for v, place in enumerate(line)
    ]
    before = f.block
    f.jump(start)
    f.place(fresh)
    f.jump(start)
    f.place(start)
    zero = f.number(0.0, vector)
    sums = [f.phi(vector, [(value, before), (zero, fresh)]) for value in loaded]
    loop = f.begin_loop(i64(0), f.argument("k"), carried=sums)
    a = f.pointer(f.argument("a"), f.binary("mul", loop.index, f.argument("a_pitch")), element)
    b = f.pointer(f.argument("b"), f.binary("mul", loop.index, f.argument("b_pitch")), element)
    line = [
        load_elements(f, element, f.pointer(b, offset, element), 1, lanes, masks[v])
        for v, offset in enumerate(offsets)
    ]
    after: list[Value] = []
    for r in range(height):
        scalar = f.splat(f.load(element, f.pointer(a, i64(r), element)), lanes)
        for v in range(width):
            total = loop.carried[r * width + v]
            after.append(fused(f, scalar, line[v], total))
    final = f.end_loop(loop, after)
    for r in range(height):
        for v in range(width):
            store_elements(f, final[r * width + v], places[r][v], 1, lanes, masks[v])


def fused(f: Function, a: Value, b: Value, c: Value) -> Value:
    """``a·b + c``, fused where the CPU can."""
    if f.cpu.fma:
        return f.intrinsic("fma", a.type, a, b, c)
    return f.binary("fadd", f.binary("fmul", a, b), c)
