"""Legalisation: every equation becomes one a kernel family lowers on the target.

The program is recorded anew; a primitive with an expansion for the target is replaced by the array
code of that expansion, which is expanded in turn. Expansions are tables: composites that the ops
declare, and those of `expand` (floats) and `expand_integer` that are needed because of what a
NeuronCore cannot do. On targets without f64, f64 becomes f32 here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from trnx.compiler.kernels.registry import has_lowering
from trnx.compiler.passes import expand_conv as expand_conv
from trnx.compiler.passes import expand_cumulative as expand_cumulative
from trnx.compiler.passes import expand_indexing as expand_indexing
from trnx.compiler.passes import expand_integer as expand_integer
from trnx.compiler.passes.expand import EXPANSIONS
from trnx.compiler.targets import Target
from trnx.core import (
    Aval,
    Equation,
    Literal,
    Params,
    Primitive,
    Program,
    RecordTrace,
    Tracer,
    Var,
    aval_of,
    cached_by_program,
    use_source,
    use_trace,
)
from trnx.core.dtypes import float32, float64
from trnx.core.program import map_sub_programs


class LegaliseTrace(RecordTrace):
    """Records a program and expands equations on the way."""

    __slots__ = ("made_by", "target")

    def __init__(self, name: str, target: Target) -> None:
        super().__init__(name)
        self.target = target
        self.made_by: dict[Var, Equation] = {}

    def process(
        self, primitive: Primitive, operands: Sequence[Any], params: Params
    ) -> Sequence[Any]:
        expansion = find_expansion(primitive, [aval_of(x) for x in operands], params, self.target)
        if expansion is None:
            return self.record(primitive, operands, params)
        results = expansion(*operands, **params)
        if isinstance(results, list | tuple):
            return list(results)
        return [results]

    def record(
        self, primitive: Primitive, operands: Sequence[Any], params: Params
    ) -> Sequence[Any]:
        """Record an equation as it is."""
        results = super().process(primitive, operands, params)
        made = self.equations[-1]
        self.made_by.update((var, made) for var in made.outputs)
        return results


def find_expansion(
    primitive: Primitive, avals: Sequence[Aval], params: Params, target: Target
) -> Callable[..., Any] | None:
    """The array code that replaces an application on the target; None when it stays."""
    choose = EXPANSIONS.get(primitive.name)
    if choose is not None:
        return choose(target, avals, params)
    if not has_lowering(primitive.name) and primitive.composite is not None:
        return primitive.composite
    return None


def _narrow(value: Any) -> Any:
    """A parameter value with f64 replaced by f32."""
    if isinstance(value, np.dtype):
        return float32 if value == float64 else value
    if type(value) is tuple:
        return tuple(_narrow(part) for part in value)
    return value


def _legal_aval(aval: Aval, target: Target) -> Aval:
    if aval.dtype == float64 and not target.native_f64:
        return Aval(aval.shape, float32, aval.weak)
    return aval


def legalise(program: Program, target: Target) -> Program:
    """The program in terms of what kernel families lower on `target`."""
    trace = LegaliseTrace(program.name, target)
    with use_trace(trace):
        values: dict[Var, Any] = {}
        for var in program.inputs:
            values[var] = trace.add_input(_legal_aval(var.aval, target))
        for var, _ in program.constants:
            values[var] = trace.add_input(_legal_aval(var.aval, target))
        for equation in program.equations:
            with use_source(equation.source if equation.source.file else None):
                _run(trace, equation, values)
        results = [values[a] if isinstance(a, Var) else _scalar(a, target) for a in program.outputs]
    recorded = trace.build(results)
    trace.end()
    count = len(program.inputs)
    constants = tuple(
        (var, _as_target(value, target))
        for var, (_, value) in zip(recorded.inputs[count:], program.constants, strict=True)
    )
    return recorded.replace(inputs=recorded.inputs[:count], constants=constants)


@cached_by_program
def _legal_body(body: Program, target: Target) -> Program:
    """A body of a loop or branch; it keeps the number and order of its inputs and outputs."""
    return legalise(body, target)


def _run(trace: LegaliseTrace, equation: Equation, values: dict[Var, Any]) -> None:
    operands = [
        values[a] if isinstance(a, Var) else _scalar(a, trace.target) for a in equation.inputs
    ]
    params = map_sub_programs(equation.params, lambda body: _legal_body(body, trace.target))
    if not trace.target.native_f64:
        params = Params({name: _narrow(value) for name, value in params.items()})
    results = equation.primitive.bind_all(operands, params)
    values.update(zip(equation.outputs, results, strict=True))


def _scalar(atom: Literal, target: Target) -> Any:
    return atom.value if target.native_f64 else _narrow_scalar(atom)


def _narrow_scalar(atom: Literal) -> Any:
    if atom.aval.dtype != float64:
        return atom.value
    with np.errstate(over="ignore"):
        return np.float32(atom.value)


def _as_target(value: Any, target: Target) -> Any:
    """A constant's array with the dtype its buffer has on the target."""
    if isinstance(value, Tracer) or aval_of(value).dtype != float64 or target.native_f64:
        return value
    with np.errstate(over="ignore"):
        return np.asarray(value).astype(np.float32)
