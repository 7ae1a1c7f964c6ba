"""The text of tile programs; ``parse`` reads it back into an equal program.

    tile program softmax target=trn2 {
      buffer x: f32[1024,4096] input
      buffer y: f32[1024,4096] output
      kernel 0 softmax(x: f32[1024,4096] in, y: f32[1024,4096] out) {
        for i in range(0, 8) parallel {
          t0 = sbuf f32[128,4096] x2 at (0, 0)
          dma_copy t0[128; 1x4096] <- x[524288*i; 4096x128, 1x4096] @sync #0 after 3
          …
        }
      }
      call 0(x, y)
      return y
    }

* ``tile[partitions@start; offset; stride x count, …]``: start and offset are left out when 0;
* ``hbm[offset; stride x count, …]``, then ``by tile[…]`` when the rows are indexed;
* ``_`` is an absent operand, ``reg(e)`` a register operand, ``[name=value, …]`` the attributes;
* ``@engine``, ``#id``, ``after ids`` end an instruction; engine, id and ids are optional;
* ``# `` with a space starts a comment.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeAlias

from trnx.compiler.tile import isa
from trnx.compiler.tile.expr import Expr, Index
from trnx.compiler.tile.ir import (
    Alloc,
    Buffer,
    For,
    HbmAccess,
    HostCall,
    Instruction,
    Kernel,
    KernelCall,
    Operand,
    Param,
    Predicate,
    RegisterLoad,
    RegisterMove,
    RegisterValue,
    Span,
    Statement,
    TileAccess,
    TileProgram,
)
from trnx.core.display import listing_html
from trnx.core.dtypes import short_name
from trnx.core.source import Source

KEYWORDS: Final = frozenset(
    ("_", "false", "inf", "load", "max", "min", "nan", "none", "reg", "true")
)
"""Words that mean something where a name may stand; such a name is written as a string."""

BARE_KINDS: Final = ("alu", "activation", "enum")
"""Attribute kinds whose strings are written without quotes."""

Note: TypeAlias = Callable[[Source], str]
"""What a comment says about the user's line."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.']*\Z")


def program_text(program: TileProgram, *, sources: bool = False) -> str:
    """The text of ``program``; ``sources`` adds the user's line as a comment where it changes."""
    return "\n".join(_program(program, str if sources else None)) + "\n"


def kernel_text(kernel: Kernel, *, sources: bool = False) -> str:
    """The text of one kernel, as inside a program, numbered 0."""
    return "\n".join(_kernel(kernel, 0, str if sources else None)) + "\n"


def program_html(program: TileProgram) -> str:
    """The text of ``program`` as HTML, with the user's line above the instructions it made."""
    found: list[Source] = []

    def mark(source: Source) -> str:
        found.append(source)
        return f"\x00{len(found) - 1}"

    lines: list[tuple[str, Source | None]] = []
    above: Source | None = None
    for line in _program(program, mark):
        body, _, number = line.partition("# \x00")
        if number:
            above = found[int(number)]
        else:
            lines.append((body, above))
            above = None
    return listing_html(lines)


def name_text(name: str) -> str:
    """A name as the grammar writes it: bare, or a string when it is no plain word."""
    return name if _NAME.match(name) and name not in KEYWORDS else json.dumps(name)


def _indent(lines: Iterator[str]) -> Iterator[str]:
    return (f"  {line}" for line in lines)


def _program(program: TileProgram, sources: Note | None) -> Iterator[str]:
    header = f"tile program {name_text(program.name)} target={name_text(program.target)}"
    if program.registers:
        header += f" registers({', '.join(map(name_text, program.registers))})"
    if program.arena_bytes:
        header += f" arena={program.arena_bytes}"
    yield header + " {"
    for buffer in program.buffers:
        yield f"  {_buffer(buffer)}"
    for number, kernel in enumerate(program.kernels):
        yield from _indent(_kernel(kernel, number, sources))
    for call in program.calls:
        yield f"  {_call(call)}"
    yield f"  return {', '.join(map(name_text, program.outputs))}".rstrip()
    yield "}"


def _shaped(name: str, dtype: Any, shape: Sequence[Index], strides: Sequence[Index] | None) -> str:
    text = f"{name_text(name)}: {short_name(dtype)}[{','.join(map(str, shape))}]"
    return text if strides is None else f"{text} strides({', '.join(map(str, strides))})"


def _buffer(buffer: Buffer) -> str:
    text = f"buffer {_shaped(buffer.name, buffer.dtype, buffer.shape, buffer.strides)}"
    text += f" {buffer.kind}"
    if buffer.offset is not None:
        text += f" at {buffer.offset}"
    if buffer.alias is not None:
        text += f" alias {name_text(buffer.alias)}"
    return text


def _call(call: KernelCall | HostCall) -> str:
    if isinstance(call, KernelCall):
        registers = f" [{', '.join(map(str, call.registers))}]" if call.registers else ""
        return f"call {call.kernel}({', '.join(map(name_text, call.buffers))}){registers}"
    ins, outs = (", ".join(map(name_text, names)) for names in (call.ins, call.outs))
    text = f"host_call {json.dumps(call.function)}({ins}) -> ({outs})"
    if call.attrs:
        text += f" [{', '.join(f'{name_text(k)}={value_text(v)}' for k, v in call.attrs)}]"
    return text


def _kernel(kernel: Kernel, number: int, sources: Note | None) -> Iterator[str]:
    params = ", ".join(_param(p) for p in kernel.params)
    registers = f" registers({', '.join(kernel.registers)})" if kernel.registers else ""
    yield f"kernel {number} {name_text(kernel.name)}({params}){registers} {{"
    yield from _indent(_body(kernel.body, sources, [None]))
    yield "}"


def _param(param: Param) -> str:
    return f"{_shaped(param.name, param.dtype, param.shape, param.strides)} {param.role}"


def _body(
    body: Sequence[Statement], sources: Note | None, last: list[Source | None]
) -> Iterator[str]:
    for statement in body:
        if isinstance(statement, Instruction):
            if sources and statement.source is not None and statement.source != last[0]:
                last[0] = statement.source
                yield f"# {sources(statement.source)}"
            yield instruction_text(statement)
        elif isinstance(statement, Alloc):
            tile = statement.tile
            text = f"{tile.name} = {tile.memory} {short_name(tile.dtype)}"
            text += f"[{','.join(map(str, tile.shape))}]"
            if tile.copies != 1:
                text += f" x{tile.copies}"
            if tile.address is not None:
                text += f" at ({tile.address[0]}, {tile.address[1]})"
            yield text
        elif isinstance(statement, For):
            step = f", {statement.step}" if statement.step != 1 else ""
            mark = " parallel" if statement.parallel else ""
            bounds = f"{statement.low}, {statement.high}{step}"
            yield f"for {statement.index} in range({bounds}){mark} {{"
            yield from _indent(_body(statement.body, sources, last))
            yield "}"
        elif isinstance(statement, RegisterLoad):
            yield f"{statement.register} = load {access_text(statement.access)}"
        elif isinstance(statement, RegisterMove):
            yield f"{statement.register} := {statement.value}"
        else:
            yield f"while {statement.condition} {{"
            yield from _indent(_body(statement.body, sources, last))
            yield "}"


def instruction_text(instruction: Instruction) -> str:
    """One instruction on one line."""
    outs = ", ".join(access_text(a) for a in instruction.outs)
    text = f"{instruction.op} {outs} <-"
    if instruction.ins:
        text += f" {', '.join(operand_text(o) for o in instruction.ins)}"
    if instruction.attrs:
        kinds = {a.name: a.kind for a in isa.spec(instruction.op).attrs}
        shown = (
            f"{k}={v}" if isinstance(v, str) and kinds.get(k) in BARE_KINDS else _pair(k, v)
            for k, v in instruction.attrs
        )
        text += f" [{', '.join(shown)}]"
    if instruction.engine:
        text += f" @{instruction.engine}"
    if instruction.id >= 0:
        text += f" #{instruction.id}"
    if instruction.deps:
        text += f" after {','.join(map(str, instruction.deps))}"
    return text


def _pair(name: str, value: Any) -> str:
    return f"{name_text(name)}={value_text(value)}"


def operand_text(operand: Operand) -> str:
    """An operand: an access, a number, ``reg(e)`` or ``_``."""
    if operand is None:
        return "_"
    if isinstance(operand, TileAccess | HbmAccess):
        return access_text(operand)
    if isinstance(operand, RegisterValue):
        return f"reg({operand.value})"
    return value_text(operand)


def access_text(access: TileAccess | HbmAccess) -> str:
    """An access pattern; see the module docstring."""
    spans = ", ".join(_span(s) for s in access.spans)
    if isinstance(access, TileAccess):
        start = f"@{access.start}" if access.start else ""
        offset = f" {access.offset};" if access.offset != 0 else ""
        return f"{access.tile}[{access.partitions}{start};{offset} {spans}]"
    text = f"{name_text(access.buffer)}[{access.offset}; {spans}]"
    return text if access.index is None else f"{text} by {access_text(access.index)}"


def _span(span: Span) -> str:
    return f"{_plain(span.stride)}x{_plain(span.count)}"


def _plain(value: Index) -> str:
    return str(value) if isinstance(value, int) and value >= 0 else f"({value})"


def value_text(value: Any) -> str:
    """An attribute or immediate."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        if math.isnan(value):
            return "nan"
        return repr(value) if math.isfinite(value) else ("inf" if value > 0 else "-inf")
    if isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, Predicate):
        return f"({value.left} {value.relation} {value.right})"
    if isinstance(value, Expr):
        return f"{{{value}}}"
    if isinstance(value, tuple):
        inner = ", ".join(value_text(v) for v in value)
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    raise TypeError(f"a tile program holds no {type(value).__name__}")
