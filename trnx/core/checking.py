"""The verifier: what every Program must satisfy, as numbered constraints.

It runs after each pass in tests and under ``TRNX_CHECK=1``. Errors carry the number, the equation
and the user's line.
"""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np

from trnx.core import dtypes
from trnx.core.avals import Aval, aval_of
from trnx.core.dims import Dim, DimVar, variables
from trnx.core.errors import CheckError, TrnxError
from trnx.core.primitive import primitives
from trnx.core.printing import equation_text
from trnx.core.program import Equation, Literal, Params, Program, Var, sub_programs

CONSTRAINTS: dict[str, str] = {
    "P1": "Every variable is defined once: as an input, a constant or an output of one equation.",
    "P2": "An operand is a literal or a variable defined earlier in the same program.",
    "P3": "Output types are those that the primitive's abstract rule gives for the operands.",
    "P4": "Parameters are frozen and hashable.",
    "P5": "A program output is a literal or a variable of the program.",
    "P6": "Types have a known native dtype and sizes that are ints of at least 0 or Dims.",
    "P7": "Sub-programs have no constants, use only their own variables, and satisfy P1 to P11.",
    "P8": "A constant has the type of its variable.",
    "P9": "A literal is a scalar whose value has the literal's dtype.",
    "P10": "Named sizes with one name have one pair of bounds.",
    "P11": "The primitive of an equation is the registered one of its name.",
}


def constraints_table() -> str:
    """A Markdown table of the constraints, for the documentation."""
    rows = [f"| {number} | {text} |" for number, text in CONSTRAINTS.items()]
    return "\n".join(["| number | constraint |", "|---|---|", *rows]) + "\n"


class _Checker:
    def __init__(self, stage: str) -> None:
        self.stage = stage
        self.sizes: dict[str, DimVar] = {}

    def fail(
        self, number: str, cause: str, program: Program, equation: Equation | None = None
    ) -> NoReturn:
        after = f" after {self.stage}" if self.stage else ""
        text = f"Program {program.name} breaks {number}{after}: {cause}"
        if equation is not None:
            text += f", in `{equation_text(equation)}`"
            if equation.source.file:
                text += f" (at {equation.source})"
        raise CheckError(f"{text}. {number}: {CONSTRAINTS[number]}", number)

    def program(self, program: Program, *, is_inner: bool) -> None:
        defined: set[Var] = set()

        def define(var: Var, equation: Equation | None = None) -> None:
            if var in defined:
                self.fail(
                    "P1", f"a variable of type {var.aval} is defined twice", program, equation
                )
            self.type(var.aval, program, equation)
            defined.add(var)

        for var in program.inputs:
            define(var)
        if is_inner and program.constants:
            self.fail("P7", f"it has {len(program.constants)} constants", program)
        for var, value in program.constants:
            define(var)
            try:
                own = aval_of(value)
            except TypeError as error:
                self.fail("P8", f"a constant is no array: {error}", program)
            if own.strong() != var.aval.strong():
                self.fail("P8", f"a constant of type {own} stands for {var.aval}", program)
        for equation in program.equations:
            self.equation(equation, defined, program)
            for var in equation.outputs:
                define(var, equation)
        for atom in program.outputs:
            if isinstance(atom, Literal):
                self.literal(atom, program, None)
            elif atom not in defined:
                self.fail("P5", f"an output of type {atom.aval} is not defined", program)

    def equation(self, equation: Equation, defined: set[Var], program: Program) -> None:
        primitive = equation.primitive
        if primitives.get(primitive.name) is not primitive:
            self.fail("P11", f"{primitive.name} is not registered", program, equation)
        for atom in equation.inputs:
            if isinstance(atom, Literal):
                self.literal(atom, program, equation)
            elif atom not in defined:
                self.fail("P2", f"an operand of type {atom.aval} is not defined", program, equation)
        self.params(equation, program)
        try:
            expected = primitive.abstract(*(a.aval for a in equation.inputs), **equation.params)
        except (TrnxError, TypeError) as error:  # TypeError: parameters the rule does not have
            self.fail(
                "P3", f"the abstract rule of {primitive.name} says: {error}", program, equation
            )
        wanted = (expected,) if isinstance(expected, Aval) else tuple(expected)
        found = tuple(var.aval for var in equation.outputs)
        if wanted != found:
            texts = ["(" + ", ".join(map(str, avals)) + ")" for avals in (found, wanted)]
            self.fail("P3", f"outputs are {texts[0]} but should be {texts[1]}", program, equation)

    def params(self, equation: Equation, program: Program) -> None:
        params: object = equation.params
        if not isinstance(params, Params):
            kind = type(params).__name__
            self.fail("P4", f"parameters of {equation.primitive.name} are a {kind}", program)
        for value in equation.params.values():
            self.dims(value, program, equation)
        for _, inner in sub_programs(equation.params):
            self.program(inner, is_inner=True)

    def literal(self, literal: Literal, program: Program, equation: Equation | None) -> None:
        self.type(literal.aval, program, equation)
        value = np.asarray(literal.value)
        if literal.aval.shape or value.shape or value.dtype != literal.aval.dtype:
            kind = f"{value.dtype.name}{list(value.shape)}"
            self.fail("P9", f"{literal.aval} holds a value {kind}", program, equation)

    def type(self, aval: Aval, program: Program, equation: Equation | None) -> None:
        known = any(aval.dtype is d or aval.dtype == d for d in dtypes.ALL_DTYPES)
        if not known or not aval.dtype.isnative:
            self.fail("P6", f"dtype {aval.dtype} is not known", program, equation)
        for size in aval.shape:
            if isinstance(size, Dim):
                self.dims(size, program, equation)
            elif type(size) is not int or size < 0:
                self.fail("P6", f"{size!r} is no size", program, equation)

    def dims(self, value: Any, program: Program, equation: Equation | None) -> None:
        if isinstance(value, tuple):
            for part in value:
                self.dims(part, program, equation)
        elif isinstance(value, Dim):
            for variable in variables(value):
                known = self.sizes.setdefault(variable.name, variable)
                if known != variable:
                    self.fail(
                        "P10",
                        f"size {variable.name} has bounds {known.min}..{known.max} and "
                        f"{variable.min}..{variable.max}",
                        program,
                        equation,
                    )


def check(program: Program, stage: str = "") -> None:
    """Verify a program.

    Args:
        program: what to verify.
        stage: name of the pass that made it, for the text.

    Raises:
        CheckError: names the constraint (attribute `constraint`), the equation and the user's line.
    """
    _Checker(stage).program(program, is_inner=False)
