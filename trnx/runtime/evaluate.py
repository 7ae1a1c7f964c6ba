"""Evaluation: what runs when a primitive meets arrays outside every trace.

One primitive is compiled as a program of one equation, kept by (primitive, types, params, device).
Python numbers are inputs of weak type, so a changed number compiles nothing. A `call` runs its
whole program as one executable.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from trnx.core import config, dtypes
from trnx.core.avals import aval_of
from trnx.core.errors import UnsupportedError, message
from trnx.core.primitive import Primitive
from trnx.core.program import (
    Atom,
    Equation,
    Params,
    Program,
    Var,
    fingerprint,
    scalar_of,
    sub_programs,
)
from trnx.core.source import Source, current_source
from trnx.core.tracing import EVAL_TRACE, set_evaluator, use_trace
from trnx.runtime.array import Array
from trnx.runtime.bucketing import run_symbolic
from trnx.runtime.convert import from_host, scalar_array
from trnx.runtime.devices import Device, default_device
from trnx.runtime.executable import Executable
from trnx.runtime.programs import cached_executable, executable_for
from trnx.transforms.inline import call_p, with_sizes

_operations: dict[tuple[Any, ...], Executable] = {}


def common_device(operands: Sequence[Any]) -> Device:
    """The device of the arrays among `operands`; the default one if there is none.

    Raises:
        UnsupportedError: arrays of different devices.
    """
    found: Device | None = None
    for operand in operands:
        if type(operand) is Array:
            device = operand._type.device
            if found is None:
                found = device
            elif device is not found and device != found:
                raise UnsupportedError(
                    message(
                        f"Arrays on {found} and on {device} meet in one call",
                        None,
                        f"Move one of them with trnx.device_put(x, {found.kind!r})",
                    )
                )
    return default_device() if found is None else found


def as_array(operand: Any, device: Device) -> Array:
    """An operand as an Array of its own type; Python numbers keep their weak type."""
    if type(operand) is Array:
        return operand
    if isinstance(operand, bool | int | float | complex) and not isinstance(operand, np.generic):
        aval = aval_of(operand)
        return scalar_array(operand, aval.dtype, device, aval.weak)
    return from_host(operand, device=device)


def evaluate(primitive: Primitive, operands: Sequence[Any], params: Params) -> Sequence[Array]:
    """Compute one primitive on arrays; the evaluator that core calls outside every trace."""
    device = common_device(operands)
    arrays = [as_array(operand, device) for operand in operands]
    if primitive is call_p:
        if "sizes" in params:
            program, sizes = params["program"], dict(params["sizes"])
            results = run_symbolic(program, sizes, params["buckets"], arrays, device)
            if config.debug_nans.value and any_nan(results):
                find_nan(with_sizes(program, params["sizes"]), arrays, results)
            return results
        return run_program(params["program"], arrays, device)
    key: tuple[Any, ...] = (primitive, params, device.target, *[a._type for a in arrays])
    executable = _operations.get(key)
    if executable is None and next(sub_programs(params), None) is not None:
        # A loop outside of jit traces its body anew each time: equal contents are one operation.
        key = (fingerprint(_one_equation(primitive, arrays, params)), device.target)
        executable = _operations.get(key)
    if executable is None:
        executable = executable_for(_one_equation(primitive, arrays, params), device, kind="op")
        _operations[key] = executable
    results = executable(arrays)
    if config.debug_nans.value:
        check_nans(primitive.name, results, current_source())
    return results


def run_program(program: Program, arrays: Sequence[Array], device: Device) -> list[Array]:
    """Run a program on arrays as one executable."""
    results = cached_executable(program, device)(arrays)
    if config.debug_nans.value and any_nan(results):
        find_nan(program, arrays, results)
    return results


def _one_equation(primitive: Primitive, arrays: Sequence[Array], params: Params) -> Program:
    inputs = tuple(Var(array.aval) for array in arrays)
    avals = primitive.out_avals(tuple(var.aval for var in inputs), params)
    outputs = tuple(map(Var, avals))
    equation = Equation(primitive, inputs, outputs, params, current_source())
    return Program(primitive.name, inputs, (), (equation,), outputs)


# ---- option debug_nans
def any_nan(results: Sequence[Array]) -> bool:
    """True if one of the arrays holds a NaN."""
    return any(map(_nan_count, results))


def _nan_count(array: Array) -> int:
    """How many elements are NaN; 0 for dtypes without NaN."""
    if not dtypes.is_inexact(array.dtype):
        return 0
    return int(np.count_nonzero(np.isnan(array._view())))


def check_nans(name: str, results: Sequence[Array], source: Source) -> None:
    """Raise FloatingPointError if a result of operation `name` holds a NaN."""
    for result in results:
        count = _nan_count(result)
        if count:
            raise FloatingPointError(
                message(
                    f"{name} made {count} NaN in {result.size} values of {result.aval}",
                    source,
                    "Look at its operands there, or switch debug_nans off",
                )
            )


def find_nan(program: Program, arrays: Sequence[Array], results: Sequence[Array]) -> None:
    """Raise FloatingPointError for a program whose `results` hold a NaN.

    The program runs again equation by equation, so that the error names the operation and the
    user's line that made the first one.
    """
    with use_trace(EVAL_TRACE):
        _replay(program, arrays)
    check_nans(program.name, results, current_source())


def _replay(program: Program, arrays: Sequence[Any]) -> list[Any]:
    values: dict[Var, Any] = dict(zip(program.inputs, arrays, strict=True))
    values.update(program.constants)

    def look(atom: Atom) -> Any:
        return values[atom] if isinstance(atom, Var) else scalar_of(atom)

    for equation in program.equations:
        operands = [look(atom) for atom in equation.inputs]
        if equation.primitive is call_p:
            called = with_sizes(equation.params["program"], equation.params.get("sizes", ()))
            results: Sequence[Any] = _replay(called, operands)
        else:
            with config.debug_nans(False):
                results = equation.primitive.bind_all(operands, equation.params)
            check_nans(equation.primitive.name, results, equation.source)
        values.update(zip(equation.outputs, results, strict=True))
    return [look(atom) for atom in program.outputs]


set_evaluator(evaluate)
