"""What is known about indices and accesses before a kernel runs: ranges, footprints, overlap.

All answers are conservative: a range may be too wide, an overlap may be claimed where there is
none. ``legality``, ``parallel``, ``schedule`` and the NKI printer share these functions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from trnx.compiler.tile.expr import (
    Bounds,
    Expr,
    Index,
    add,
    bounds,
    mul,
    quotient,
    scale,
    substitute,
    symbol,
)
from trnx.compiler.tile.ir import (
    Access,
    Alloc,
    For,
    HbmAccess,
    Instruction,
    Kernel,
    Param,
    RegisterLoad,
    RegisterMove,
    Span,
    Statement,
    TileAccess,
    While,
)

Env: TypeAlias = dict[str, Bounds]
Loop: TypeAlias = "For | While"


def kernel_env(kernel: Kernel) -> Env:
    """Ranges of the register arguments: sizes and strides, so 0 or more."""
    return dict.fromkeys(kernel.registers, (0, None))


def index_bounds(loop: For, env: Mapping[str, Bounds]) -> Bounds:
    """Inclusive range of a loop's index."""
    if isinstance(loop.low, int) and isinstance(loop.high, int):
        trips = max(0, -((loop.low - loop.high) // loop.step))
        return loop.low, loop.low + max(0, trips - 1) * loop.step
    low, _ = bounds(loop.low, env)
    _, high = bounds(loop.high, env)
    return low, None if high is None else high - 1


def trip_count(loop: Loop) -> int | None:
    """Iterations of a loop with constant bounds; None when it is only known at run time."""
    if isinstance(loop, For) and isinstance(loop.low, int) and isinstance(loop.high, int):
        return max(0, -((loop.low - loop.high) // loop.step))
    return None


def visit(kernel: Kernel) -> Iterator[tuple[Statement, Env, tuple[Loop, ...]]]:
    """Every statement with the ranges of the symbols in scope and its loops, outermost first."""
    yield from _visit(kernel.body, kernel_env(kernel), ())


def _visit(
    body: Sequence[Statement], env: Env, loops: tuple[Loop, ...]
) -> Iterator[tuple[Statement, Env, tuple[Loop, ...]]]:
    for statement in body:
        yield statement, env, loops
        if isinstance(statement, For):
            inner = {**env, statement.index: index_bounds(statement, env)}
            yield from _visit(statement.body, inner, (*loops, statement))
        elif isinstance(statement, While):
            yield from _visit(statement.body, env, (*loops, statement))


def accesses(statement: Statement) -> Iterator[tuple[Access, bool]]:
    """Every access of a statement with whether it writes; index tiles are reads."""
    if isinstance(statement, RegisterLoad):
        yield from _with_index(statement.access, False)
    elif isinstance(statement, Instruction):
        for access in statement.outs:
            yield from _with_index(access, True)
            if _updates(statement, access):
                yield access, False
        for operand in statement.ins:
            if isinstance(operand, TileAccess | HbmAccess):
                yield from _with_index(operand, False)


def _updates(instruction: Instruction, access: Access) -> bool:
    """Whether the destination's old contents matter as well."""
    if instruction.op == "nc_matmul":
        return bool(instruction.attr("accumulate", False))
    return instruction.op in ("dma_compute", "tensor_copy_predicated")


def _with_index(access: Access, writes: bool) -> Iterator[tuple[Access, bool]]:
    yield access, writes
    if isinstance(access, HbmAccess) and access.index is not None:
        yield access.index, False


def written_registers(body: Sequence[Statement]) -> set[str]:
    """Registers that a body, loops included, assigns."""
    names: set[str] = set()
    for statement in body:
        if isinstance(statement, RegisterLoad | RegisterMove):
            names.add(statement.register)
        elif isinstance(statement, For | While):
            names |= written_registers(statement.body)
    return names


def declared_tiles(body: Sequence[Statement]) -> set[str]:
    """Tiles allocated in a body, loops included."""
    names: set[str] = set()
    for statement in body:
        if isinstance(statement, Alloc):
            names.add(statement.tile.name)
        elif isinstance(statement, For | While):
            names |= declared_tiles(statement.body)
    return names


def extent(spans: Sequence[Span]) -> Index:
    """Distance in elements from the first to the last element of non-negative strides."""
    total: Index = 0
    for span in spans:
        total = add(total, mul(span.stride, add(span.count, -1)))
    return total


def free_range(access: TileAccess, env: Mapping[str, Bounds]) -> Bounds:
    """Inclusive range of element offsets an access touches inside each partition."""
    low, _ = bounds(access.offset, env)
    _, high = bounds(add(access.offset, extent(access.spans)), env)
    return low, high


def partition_range(access: TileAccess, env: Mapping[str, Bounds]) -> Bounds:
    """Inclusive range of partitions, counted inside the tile."""
    _, high = bounds(access.partitions, env)
    return access.start, None if high is None else access.start + high - 1


@dataclass(frozen=True, slots=True)
class DimRange:
    """How an access walks one declared dimension: a start and steps in units of that dimension."""

    start: Index
    spans: tuple[Span, ...]

    @property
    def last(self) -> Index:
        """Largest index."""
        return add(self.start, extent(self.spans))


def split_by_dimension(param: Param, access: HbmAccess) -> tuple[DimRange, ...] | None:
    """The access as one range per declared dimension of ``param``; None when it is not one.

    The answer is unique only if every range lies inside its dimension (``inside_dimensions``).
    """
    strides = param.element_strides
    order = list(range(len(strides)))
    if all(isinstance(s, int) for s in strides):
        order.sort(key=lambda d: (-int(str(strides[d])), param.shape[d] == 1))
    starts: list[Index] = [0] * len(strides)
    walks: list[list[Span]] = [[] for _ in strides]
    rest: Index = access.offset
    for dim in order:
        starts[dim], rest = multiples(rest, strides[dim])
    if rest != 0:
        return None
    for span in access.spans:
        if span.count == 1 or span.stride == 0:
            continue
        for dim in order:
            step = quotient(span.stride, strides[dim])
            if step is not None and param.shape[dim] != 1:
                walks[dim].append(Span(step, span.count))
                break
        else:
            return None
    return tuple(DimRange(s, tuple(w)) for s, w in zip(starts, walks, strict=True))


def multiples(value: Index, stride: Index) -> tuple[Index, Index]:
    """``(q, r)`` with ``value = q*stride + r``, r made of the terms stride does not divide."""
    if stride == 0:
        return 0, value
    if isinstance(value, int):
        if isinstance(stride, int):
            return value // stride, value % stride
        return 0, value
    whole: Index = 0
    rest: Index = 0
    for atom, coefficient in value.terms:
        term = Expr(0, ((atom, coefficient),))
        part = quotient(term, stride)
        if part is None:
            rest = add(rest, term)
        else:
            whole = add(whole, part)
    constant, remainder = multiples(value.const, stride)
    return add(whole, constant), add(rest, remainder)


def inside_dimensions(param: Param, ranges: Sequence[DimRange], env: Mapping[str, Bounds]) -> bool:
    """Whether every range provably lies inside its dimension."""
    for size, walked in zip(param.shape, ranges, strict=True):
        low, _ = bounds(walked.start, env)
        _, over = bounds(add(walked.last, scale(size, -1)), env)
        if low is None or low < 0 or over is None or over >= 0:
            return False
    return True


def disjoint(
    param: Param,
    first: HbmAccess,
    second: HbmAccess,
    env: Env,
    ahead: str | None,
    step: int,
    free: Sequence[str],
) -> bool:
    """Whether two accesses provably touch different elements of ``param``.

    ``second`` runs in a later iteration of the loop with index ``ahead`` and ``step`` (None: the
    same iteration); the loops in ``free`` are at any iteration. All other symbols are equal.
    Elements of one parameter with different indices are taken to be different memory.
    """
    if first.index is not None or second.index is not None:
        return False
    ranges = dict(env)
    renames: dict[str, Index] = {}
    for name in free:
        renames[name] = symbol(f"{name}'")
        ranges[f"{name}'"] = ranges.get(name, (None, None))
    if ahead is not None:
        low, high = ranges.get(ahead, (None, None))
        span = None if low is None or high is None else max(high - low, step)
        renames[ahead] = symbol(ahead) + symbol("'ahead")
        ranges["'ahead"] = (step, span)
    first_dims = split_by_dimension(param, first)
    second_dims = split_by_dimension(param, second)
    if (
        first_dims is not None
        and second_dims is not None
        and inside_dimensions(param, first_dims, env)
        and inside_dimensions(param, second_dims, env)
        and any(
            _apart(a, _renamed(b, renames), ranges)
            for a, b in zip(first_dims, second_dims, strict=True)
        )
    ):
        return True
    if not all(isinstance(s, int) for s in param.element_strides):
        return False
    return _apart(
        DimRange(first.offset, first.spans),
        _renamed(DimRange(second.offset, second.spans), renames),
        ranges,
    )


def _renamed(walked: DimRange, renames: Mapping[str, Index]) -> DimRange:
    spans = tuple(
        Span(substitute(s.stride, renames), substitute(s.count, renames)) for s in walked.spans
    )
    return DimRange(substitute(walked.start, renames), spans)


def _apart(first: DimRange, second: DimRange, env: Mapping[str, Bounds]) -> bool:
    after, _ = bounds(add(second.start, scale(first.last, -1)), env)
    if after is not None and after > 0:
        return True
    _, before = bounds(add(second.last, scale(first.start, -1)), env)
    if before is not None and before < 0:
        return True
    difference = add(second.start, scale(first.start, -1))
    steps = [s.stride for s in (*first.spans, *second.spans)]
    if not isinstance(difference, int) or not steps:
        return False
    # Interleaved walks (even and odd columns) never meet when their starts differ modulo the step.
    return any(
        all(isinstance(s, int) and s % base == 0 for s in steps) and difference % base != 0
        for base in steps
        if isinstance(base, int) and base > 1
    )
