"""Which loops may run their iterations in any order, or at once: proved, never assumed.

A static or register loop is parallel when, for any two different iterations,

* no HBM element written by one is read or written by the other,
* no tile declared outside the loop is written inside it (accumulators carry state),
* no register is written inside it, and it holds no ``while``.
"""

from __future__ import annotations

from dataclasses import replace

from trnx.compiler.tile.analysis import (
    Env,
    accesses,
    declared_tiles,
    disjoint,
    index_bounds,
    kernel_env,
    trip_count,
    written_registers,
)
from trnx.compiler.tile.ir import For, HbmAccess, Kernel, Param, Statement, TileAccess, While, walk


def is_parallel(loop: For, env: Env, params: dict[str, Param]) -> bool:
    """Whether the iterations of ``loop`` provably touch disjoint data; see the module docstring.

    Args:
        loop: the loop.
        env: ranges of the symbols in scope outside it.
        params: HBM parameters of the kernel by name.
    """
    if trip_count(loop) in (0, 1) or written_registers(loop.body):
        return False
    own = declared_tiles(loop.body)
    inner = {**env, loop.index: index_bounds(loop, env)}
    free: list[str] = []
    touched: list[tuple[HbmAccess, bool]] = []
    for statement in walk(loop.body):
        if isinstance(statement, While):
            return False
        if isinstance(statement, For):
            free.append(statement.index)
            inner[statement.index] = index_bounds(statement, inner)
        for access, writes in accesses(statement):
            if isinstance(access, TileAccess):
                if writes and access.tile not in own:
                    return False
            else:
                touched.append((access, writes))
    written = {access.buffer for access, writes in touched if writes}
    for access, writes in touched:
        if not writes:
            continue
        for other, _ in touched:
            if other.buffer != access.buffer:
                continue
            param = params[access.buffer]
            # Both orders: either access may belong to the earlier iteration.
            if not disjoint(param, access, other, inner, loop.index, loop.step, free):
                return False
            if not disjoint(param, other, access, inner, loop.index, loop.step, free):
                return False
    return bool(written)


def mark_parallel(kernel: Kernel) -> Kernel:
    """The kernel with ``parallel`` set on exactly the loops for which it can be proved."""
    params = {p.name: p for p in kernel.params}
    return replace(kernel, body=_mark(kernel.body, kernel_env(kernel), params))


def _mark(body: tuple[Statement, ...], env: Env, params: dict[str, Param]) -> tuple[Statement, ...]:
    result: list[Statement] = []
    for statement in body:
        if isinstance(statement, For):
            inner = {**env, statement.index: index_bounds(statement, env)}
            marked = _mark(statement.body, inner, params)
            proved = is_parallel(statement, env, params)
            statement = replace(statement, body=marked, parallel=proved)
        elif isinstance(statement, While):
            statement = replace(statement, body=_mark(statement.body, env, params))
        result.append(statement)
    return tuple(result)
