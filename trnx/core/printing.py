"""Program to text. The grammar is in :mod:`trnx.core.parsing`, which reads it back.

::

    program main(a: f32[64,128], b: f32[128]) {
      c: f32[64,128] = broadcast[dims=(1,), shape=(64, 128)] b
      d: f32[64,128] = mul c 2.0:f32[]
      return d
    }
"""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from trnx.core import dtypes
from trnx.core.avals import Aval
from trnx.core.dims import Dim, DimVar
from trnx.core.display import listing_html
from trnx.core.errors import TraceError, message
from trnx.core.program import (
    Annotation,
    Atom,
    Equation,
    Literal,
    Program,
    Var,
    array_digest,
    dim_variables,
)
from trnx.core.source import Source

_INDENT = "  "
_DIGEST_LENGTH = 12

param_types: dict[str, type] = {}


def register_param_type(cls: type) -> type:
    """Let a frozen dataclass or an Enum be a parameter value that prints and parses (decorator)."""
    known = param_types.get(cls.__name__)
    if known is not None and known is not cls:
        raise ValueError(f"A parameter type named {cls.__name__} exists already. Rename the class.")
    if not dataclasses.is_dataclass(cls) and not issubclass(cls, enum.Enum):
        raise TypeError(f"{cls.__name__} is neither a dataclass nor an Enum. Use one of these.")
    param_types[cls.__name__] = cls
    return cls


def variable_names() -> Iterator[str]:
    """a, b, … z, aa, ab, …: never a reserved word of the grammar."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    number = 0
    while True:
        name, rest = "", number
        while True:
            name = letters[rest % 26] + name
            rest = rest // 26 - 1
            if rest < 0:
                break
        number += 1
        if name not in RESERVED:
            yield name


RESERVED = frozenset({"program", "const", "dims", "return", "inf", "nan", "complex"}) | frozenset(
    map(dtypes.short_name, dtypes.ALL_DTYPES)
)


def literal_text(item: Literal) -> str:
    """``2.0:f32[]``: value and type; a NaN with other bits than the usual prints them in hex."""
    value, dtype = item.value, item.aval.dtype
    if dtypes.is_bool(dtype):
        text = str(bool(value))
    elif dtypes.is_integer(dtype):
        text = str(int(value))
    elif dtypes.is_complex(dtype):
        text = f"complex({float_text(value.real)},{float_text(value.imag)})"
    else:
        text = float_text(value)
        usual = np.asarray(math.nan).astype(dtype)
        if math.isnan(float(value)) and value.tobytes() != usual.tobytes():
            text = "0x" + value.tobytes()[::-1].hex()
    return f"{text}:{item.aval}"


def float_text(value: Any) -> str:
    """Shortest text that reads back to the same value; always with a point, exponent or name."""
    if math.isnan(float(value)):
        return "nan"
    if isinstance(value, np.float16 | np.float32):
        return str(value)  # shortest digits for this precision
    return repr(float(value))


class _Printer:
    """Names variables in order of appearance; sub-programs share the name space of their text."""

    def __init__(self, full_digests: bool, annotate: Callable[[Equation], str] | None) -> None:
        self.full_digests = full_digests
        self.annotate = annotate
        self.names: dict[Var, str] = {}
        self.fresh = variable_names()

    def define(self, var: Var) -> str:
        name = self.names.get(var)
        if name is None:
            name = self.names[var] = next(self.fresh)
        return f"{name}: {var.aval}"

    def atom(self, atom: Atom) -> str:
        if isinstance(atom, Literal):
            return literal_text(atom)
        name = self.names.get(atom)
        if name is None:  # an invalid program still prints, so that its error can show it
            name = self.names[atom] = f"undefined_{next(self.fresh)}"
        return name

    def equation(self, equation: Equation, indent: str) -> str:
        inputs = "".join(f" {self.atom(atom)}" for atom in equation.inputs)
        params = ""
        if equation.params:
            parts = [f"{k}={self.value(v, indent)}" for k, v in equation.params.items()]
            params = f"[{', '.join(parts)}]"
        outputs = ", ".join(self.define(var) for var in equation.outputs) or "()"
        note = f"  # {self.annotate(equation)}" if self.annotate is not None else ""
        return f"{indent}{outputs} = {equation.primitive.name}{params}{inputs}{note}\n"

    def value(self, value: Any, indent: str) -> str:
        if value is None or (isinstance(value, bool | int) and not isinstance(value, enum.Enum)):
            return str(value)
        if isinstance(value, Dim):
            return str(value)
        if isinstance(value, float):
            return float_text(value)
        if isinstance(value, complex):
            return f"complex({float_text(value.real)},{float_text(value.imag)})"
        if isinstance(value, enum.Enum):
            return f"{type(value).__name__}.{value.name}"
        if isinstance(value, str):
            return repr(value)
        if isinstance(value, np.dtype):
            return dtypes.short_name(value)
        if isinstance(value, Aval):
            return str(value)
        if type(value) is tuple:
            comma = "," if len(value) == 1 else ""
            return f"({', '.join(self.value(part, indent) for part in value)}{comma})"
        if isinstance(value, Program):
            return self.program(value, indent + _INDENT, nested=True)
        if dataclasses.is_dataclass(value) and type(value).__name__ in param_types:
            fields = ", ".join(
                f"{f.name}={self.value(getattr(value, f.name), indent)}"
                for f in dataclasses.fields(value)
            )
            return f"{type(value).__name__}({fields})"
        if isinstance(value, Annotation):
            return f"<{value.name!r}>"
        if self.full_digests:
            raise TraceError(
                message(
                    f"A parameter value of type {type(value).__qualname__} has no text form",
                    None,
                    "Register its class with register_param_type, or pass a Program",
                )
            )
        return f"<{getattr(value, '__name__', type(value).__name__)}>"

    def program(self, program: Program, indent: str, nested: bool = False) -> str:
        head = "" if nested else _dims_header(dim_variables(program))
        inputs = ", ".join(self.define(var) for var in program.inputs)
        lines = [f"{head}program {program.name}({inputs}) {{\n"]
        inner = indent + _INDENT
        for var, value in program.constants:
            lines.append(f"{inner}const {self.define(var)} #{self.digest(value)}\n")
        for equation in program.equations:
            lines.append(self.equation(equation, inner))
        outputs = ", ".join(self.atom(atom) for atom in program.outputs)
        lines.append(f"{inner}return{' ' if outputs else ''}{outputs}\n{indent}}}")
        return "".join(lines)

    def digest(self, value: Any) -> str:
        from trnx.core.tracing import Tracer

        if isinstance(value, Tracer):
            if self.full_digests:
                raise TraceError(
                    message(
                        "A program that captures a traced value has no fingerprint",
                        None,
                        "Pass the value as an argument",
                    )
                )
            return "traced"
        digest = array_digest(value)
        return digest if self.full_digests else digest[:_DIGEST_LENGTH]


def _dims_header(found: tuple[DimVar, ...]) -> str:
    if not found:
        return ""
    ranges = ", ".join(f"{v.name}: {v.min}..{'' if v.max is None else v.max}" for v in found)
    return f"dims {ranges}\n"


def program_text(
    program: Program,
    *,
    full_digests: bool = False,
    annotate: Callable[[Equation], str] | None = None,
) -> str:
    """The text of a program.

    Args:
        program: what to print.
        full_digests: print whole digests of constants, and refuse values that have no text.
        annotate: gives a comment for each equation, for example its source.
    """
    return _Printer(full_digests, annotate).program(program, "")


def equation_text(equation: Equation) -> str:
    """One equation on one line, variables named from ``a``."""
    printer = _Printer(False, None)
    for atom in equation.inputs:
        if isinstance(atom, Var):
            printer.define(atom)
    return printer.equation(equation, "").rstrip("\n")


def program_html(program: Program) -> str:
    """The text of a program as HTML, with the user's line above the equations it made."""
    return listing_html(annotated_lines(program))


def annotated_lines(program: Program) -> list[tuple[str, Source | None]]:
    """The lines of a program's text, each with the source of its equation."""
    sources: list[Source] = []

    def mark(equation: Equation) -> str:
        sources.append(equation.source)
        return f"\x00{len(sources) - 1}"

    lines: list[tuple[str, Source | None]] = []
    for line in program_text(program, annotate=mark).split("\n"):
        body, _, number = line.partition("  # \x00")
        lines.append((body, sources[int(number)] if number else None))
    return lines


def source_text(program: Program) -> str:
    """The text of a program with the user's line after each equation."""
    return program_text(program, annotate=lambda equation: str(equation.source))
