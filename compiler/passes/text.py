"""Text of programs between fusion and lowering."""

from __future__ import annotations

from collections.abc import Iterator

from trnx.compiler.passes.groups import FusedProgram, Group
from trnx.core import Equation, Var
from trnx.core.printing import _Printer


def fused_text(fused: FusedProgram) -> str:
    """The program with a block per group; values that stay inside a group are marked by nothing.

    Outputs of a group are listed in its head, because only they are written to memory. An operand
    that is read through a view of another array is declared by ``view array[offset; stride x
    count, …]``: no equation computes it.
    """
    printer = _Printer(False, None)
    program = fused.program
    inputs = ", ".join(printer.define(v) for v in program.inputs)
    lines = [f"fused program {program.name}({inputs}) {{"]
    for var, value in program.constants:
        lines.append(f"  const {printer.define(var)} #{printer.digest(value)}")
    for number, group in enumerate(fused.groups):
        body: list[str] = []
        for part in (group, *group.beside):
            if part is not group:
                body.append("    beside")
            for equation in part.equations:
                body += [f"    {line}" for line in _views(printer, equation, fused)]
                body.append(printer.equation(equation, "    ").rstrip("\n"))
        lines.append(f"  group {number} {group.family} -> {_names(printer, group)} {{")
        lines += [*body, "  }"]
    outputs = ", ".join(printer.atom(a) for a in program.outputs)
    lines.append(f"  return {outputs}")
    return "\n".join([*lines, "}"])


def _views(printer: _Printer, equation: Equation, fused: FusedProgram) -> Iterator[str]:
    """Declarations of the operands that are views and were not named yet."""
    for atom in equation.inputs:
        if isinstance(atom, Var) and atom not in printer.names and atom in fused.views:
            view = fused.views[atom]
            spans = ", ".join(f"{span.stride}x{span.count}" for span in view.spans)
            root = printer.atom(view.root)
            yield f"{printer.define(atom)} = view {root}[{view.offset}; {spans}]"


def _names(printer: _Printer, group: Group) -> str:
    return ", ".join(printer.atom(v) if isinstance(v, Var) else str(v) for v in group.written)
