"""Text of programs between fusion and lowering."""

from __future__ import annotations

from trnx.compiler.passes.fuse import FusedProgram, Group
from trnx.core import Var
from trnx.core.printing import _Printer


def fused_text(fused: FusedProgram) -> str:
    """The program with a block per group; values that stay inside a group are marked by nothing.

    Outputs of a group are listed in its head, because only they are written to memory.
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
            body += [printer.equation(e, "    ").rstrip("\n") for e in part.equations]
        lines.append(f"  group {number} {group.family} -> {_names(printer, group)} {{")
        lines += [*body, "  }"]
    outputs = ", ".join(printer.atom(a) for a in program.outputs)
    lines.append(f"  return {outputs}")
    return "\n".join([*lines, "}"])


def _names(printer: _Printer, group: Group) -> str:
    return ", ".join(printer.atom(v) if isinstance(v, Var) else str(v) for v in group.written)
