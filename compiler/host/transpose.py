"""Library functions that transpose matrices of 1-, 2-, 4- and 8-byte elements.

``void trnx_transpose_B(ptr dst, i64 dst_row, i64 dst_column, ptr src, i64 src_row, i64 src_column,
i64 rows, i64 columns)``: dst[c, r] = src[r, c]; the row and column steps are in bytes. Where both
matrices have neighbouring elements side by side, square blocks are transposed in registers.
"""

from __future__ import annotations

from trnx.compiler.host.cpu import Cpu
from trnx.compiler.host.emit import I64, PTR, Function, Module, Value, element_type, i64, lanes_of

_ARGUMENTS = (
    (PTR, "dst"),
    (I64, "dst_row"),
    (I64, "dst_column"),
    (PTR, "src"),
    (I64, "src_row"),
    (I64, "src_column"),
    (I64, "rows"),
    (I64, "columns"),
)


def transpose_symbol(itemsize: int, cpu: Cpu) -> str:
    """Name of the function for elements of ``itemsize`` bytes."""
    return f"trnx_transpose_{itemsize}_{cpu.tag}"


def emit_transpose(module: Module, itemsize: int) -> None:
    """Add the transpose of elements of ``itemsize`` bytes to a module."""
    element = f"i{8 * itemsize}"
    f = Function(module, transpose_symbol(itemsize, module.cpu), "void", list(_ARGUMENTS))
    # Blocks as wide as a register for 4 and 8 bytes; narrower elements use 8 of them.
    side = max(4, min(16, module.cpu.vector_bytes // itemsize)) if itemsize >= 4 else 8
    rows, columns = f.argument("rows"), f.argument("columns")
    dense = f.binary(
        "and",
        f.icmp("eq", f.argument("dst_column"), i64(itemsize)),
        f.icmp("eq", f.argument("src_column"), i64(itemsize)),
    )
    full_rows = f.select(dense, f.binary("and", rows, i64(-side)), i64(0))
    full_columns = f.select(dense, f.binary("and", columns, i64(-side)), i64(0))
    outer = f.begin_loop(i64(0), full_rows, side)
    inner = f.begin_loop(i64(0), full_columns, side)
    _block(f, element, itemsize, side, outer.index, inner.index)
    f.end_loop(inner)
    f.end_loop(outer)
    _rest(f, element, (i64(0), full_rows), (full_columns, columns))
    _rest(f, element, (full_rows, rows), (i64(0), columns))
    f.finish()


def _place(f: Function, side: str, row: Value, column: Value) -> Value:
    down = f.binary("mul nsw", row, f.argument(f"{side}_row"))
    along = f.binary("mul nsw", column, f.argument(f"{side}_column"))
    return f.pointer(f.argument(side), f.binary("add nsw", down, along), "i8")


def _rest(
    f: Function, element: str, rows: tuple[Value, Value], columns: tuple[Value, Value]
) -> None:
    """Element by element over ``rows`` x ``columns`` of the source."""
    outer = f.begin_loop(columns[0], columns[1])
    inner = f.begin_loop(rows[0], rows[1])
    value = f.load(element, _place(f, "src", inner.index, outer.index))
    f.store(value, _place(f, "dst", outer.index, inner.index))
    f.end_loop(inner)
    f.end_loop(outer)


def _block(f: Function, element: str, itemsize: int, side: int, row: Value, column: Value) -> None:
    vector = f"<{side} x {element}>"
    lines: list[Value] = []
    source = _place(f, "src", row, column)
    for k in range(side):
        step = f.binary("mul nsw", f.argument("src_row"), i64(k))
        lines.append(f.load(vector, f.pointer(source, step, "i8"), itemsize))
    target = _place(f, "dst", column, row)
    for k, line in enumerate(transpose_registers(f, lines)):
        step = f.binary("mul nsw", f.argument("dst_row"), i64(k))
        f.store(line, f.pointer(target, step, "i8"), itemsize)


def transpose_registers(f: Function, lines: list[Value]) -> list[Value]:
    """Transpose a square of vectors by exchanging ever larger halves between pairs of lines."""
    side = len(lines)
    kind = lines[0].type
    assert lanes_of(kind) == side and element_type(kind)
    step = 1
    while step < side:
        following: list[Value] = [lines[0]] * side
        for k in range(side):
            if k & step:
                continue
            a, b = lines[k], lines[k + step]
            low = [c if not c & step else side + (c ^ step) for c in range(side)]
            high = [(c | step) if not c & step else side + c for c in range(side)]
            following[k] = _shuffle(f, a, b, low)
            following[k + step] = _shuffle(f, a, b, high)
        lines = following
        step *= 2
    return lines


def _shuffle(f: Function, a: Value, b: Value, order: list[int]) -> Value:
    mask = ", ".join(f"i32 {k}" for k in order)
    return f.emit(a.type, f"shufflevector {a}, {b}, <{len(order)} x i32> <{mask}>")
