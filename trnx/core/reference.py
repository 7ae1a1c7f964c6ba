"""The NumPy meaning of a whole program: every equation by the reference of its primitive."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from trnx.core.avals import to_numpy
from trnx.core.program import Program, Var


def reference_program(program: Program, args: Sequence[Any]) -> list[np.ndarray[Any, Any]]:
    """Run a program of static sizes in NumPy, for tests and for references of control flow.

    Args:
        program: what to run.
        args: one NumPy array or scalar per input.

    Returns:
        One array per output.

    Raises:
        RuleError: a primitive has no reference.
    """
    values: dict[Var, Any] = dict(zip(program.inputs, args, strict=True))
    values.update((var, to_numpy(value)) for var, value in program.constants)
    for equation in program.equations:
        primitive = equation.primitive
        operands = [
            values[atom] if isinstance(atom, Var) else np.asarray(atom.value)
            for atom in equation.inputs
        ]
        result = primitive.rule("reference")(*operands, **equation.params)
        results = result if primitive.multiple_results else (result,)
        values.update(zip(equation.outputs, results, strict=True))
    return [
        np.asarray(values[atom] if isinstance(atom, Var) else atom.value)
        for atom in program.outputs
    ]
