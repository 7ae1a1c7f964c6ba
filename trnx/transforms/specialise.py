"""Specialise: give named sizes of a program values, in types, parameters and sub-programs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trnx.core import Aval, Dim, Params, Program, Size, trace_program
from trnx.core.dims import substitute
from trnx.core.errors import DimError, message
from trnx.core.program import Equation, Literal, Var, constants_to_inputs, dim_variables, scalar_of
from trnx.core.source import use_source


def substitute_value(value: Any, sizes: Mapping[str, Size]) -> Any:
    """A parameter value with named sizes replaced, also inside tuples, types and programs."""
    if isinstance(value, Dim):
        return substitute(value, sizes)
    if type(value) is tuple:
        return tuple(substitute_value(part, sizes) for part in value)
    if isinstance(value, Aval):
        return value.with_shape(tuple(substitute(size, sizes) for size in value.shape))
    if isinstance(value, Program):
        own = {variable.name for variable in dim_variables(value)}
        return specialise(value, {name: size for name, size in sizes.items() if name in own})
    return value


def specialise(program: Program, sizes: Mapping[str, Size]) -> Program:
    """The program with named sizes replaced by ints (or by other sizes).

    Args:
        program: a program with symbolic sizes.
        sizes: a value per name; names that are missing stay symbolic.

    Returns:
        A program of the new types; types of intermediate values are derived again by the abstract
        rules, so every equation is checked for the new sizes.

    Raises:
        DimError: a value is out of its bounds, or a name is not in the program.
        ShapeError: the operations do not fit together for these sizes.
    """
    known = {variable.name for variable in dim_variables(program)}
    unknown = [name for name in sizes if name not in known]
    if unknown and known:
        raise DimError(
            message(
                f"Program {program.name} has no size named {', '.join(unknown)}",
                None,
                f"Its sizes are {', '.join(sorted(known))}",
            )
        )
    if not known:
        return program
    closed, constants = constants_to_inputs(program)

    def run(*args: Any) -> list[Any]:
        values: dict[Var, Any] = dict(zip(closed.inputs, args, strict=True))
        for equation in closed.equations:
            values.update(zip(equation.outputs, _rebind(equation, values, sizes), strict=True))
        return [scalar_of(a) if isinstance(a, Literal) else values[a] for a in closed.outputs]

    avals = [substitute_value(aval, sizes) for aval in closed.in_avals]
    result = trace_program(run, avals, program.name)
    count = len(constants)
    pairs = tuple(zip(result.inputs[:count], constants, strict=True))
    return result.replace(inputs=result.inputs[count:], constants=pairs)


def _rebind(equation: Equation, values: dict[Var, Any], sizes: Mapping[str, Size]) -> Any:
    if equation.primitive.name == "call" and "sizes" in equation.params:
        params = equation.params  # the names of its program are its own
    else:
        params = Params({name: substitute_value(v, sizes) for name, v in equation.params.items()})
    operands = [scalar_of(a) if isinstance(a, Literal) else values[a] for a in equation.inputs]
    with use_source(equation.source):
        return equation.primitive.bind_all(operands, params)
