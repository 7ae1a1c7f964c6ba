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
from trnx.compiler.passes import expand_complex as expand_complex
from trnx.compiler.passes import expand_conv as expand_conv
from trnx.compiler.passes import expand_cumulative as expand_cumulative
from trnx.compiler.passes import expand_indexing as expand_indexing
from trnx.compiler.passes import expand_integer as expand_integer
from trnx.compiler.passes import expand_sort as expand_sort
from trnx.compiler.passes import expand_window as expand_window
from trnx.compiler.passes import long_compare
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
from trnx.core.dtypes import complex64, complex128, float32, float64, is_complex
from trnx.core.program import map_sub_programs, sub_programs
from trnx.core.tracing import RecordTracer
from trnx.ops import functions


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
        avals = [aval_of(x) for x in operands]
        if expand_complex.is_involved(primitive, avals, params):
            return self._on_parts(primitive, operands, avals, params)
        if primitive.name in long_compare.COMPARISONS and not self.target.native_i64:
            compared = long_compare.by_words(primitive.name, *operands)
            if compared is not None:
                return [compared]
        expansion = find_expansion(primitive, avals, params, self.target)
        if expansion is None:
            return self.record(primitive, operands, params)
        results = expansion(*operands, **params)
        if isinstance(results, list | tuple):
            return list(results)
        return [results]

    def _on_parts(
        self,
        primitive: Primitive,
        operands: Sequence[Any],
        avals: Sequence[Aval],
        params: Params,
    ) -> Sequence[Any]:
        """A complex operation: on the parts, or as a host call."""
        if primitive.name == "complex":
            return self.record(primitive, operands, params)
        if primitive.name in ("real", "imag"):
            return [self._part(primitive.name, *operands)]
        expansion = expand_complex.expansion_of(primitive, avals, params)
        if expansion is None:
            return expand_complex.host_call(self, primitive, operands, params)
        results = expansion(*operands, **params)
        return list(results) if isinstance(results, list | tuple) else [results]

    def _part(self, name: str, x: Any) -> Any:
        """A part of a complex value: every one here is a number or made by `complex`."""
        if not isinstance(x, RecordTracer):
            return getattr(np.asarray(x), name)[()]
        made = self.made_by[x.bound]
        atom = made.inputs[0 if name == "real" else 1]
        part = atom.value if isinstance(atom, Literal) else RecordTracer(self, atom, x.source)
        return functions.spread(part, x)

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
        return _NARROW.get(value, value)
    if type(value) is tuple:
        return tuple(_narrow(part) for part in value)
    return value


_NARROW = {float64: float32, complex128: complex64}


def _legal_aval(aval: Aval, target: Target) -> Aval:
    """The type a value has on the target; complex ones are packed in memory beside that."""
    if target.native_f64:
        return aval
    return aval.with_dtype(_NARROW.get(aval.dtype, aval.dtype), aval.weak)


def legalise(program: Program, target: Target) -> Program:
    """The program in terms of what kernel families lower on `target`."""
    trace = LegaliseTrace(program.name, target)
    with use_trace(trace):
        values: dict[Var, Any] = {}
        for var in (*program.inputs, *(var for var, _ in program.constants)):
            aval = _legal_aval(var.aval, target)
            memory = trace.add_input(expand_complex.packed_aval(aval))
            values[var] = expand_complex.unpack(memory, aval)
        for equation in program.equations:
            with use_source(equation.source if equation.source.file else None):
                _run(trace, equation, values)
        results = [
            expand_complex.pack(values[a] if isinstance(a, Var) else _scalar(a, target))
            for a in program.outputs
        ]
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
    if params is not equation.params and next(sub_programs(params), None) is not None:
        # Bodies take and give complex values in the form they have in memory.
        found = equation.primitive.bind_all(list(map(expand_complex.pack, operands)), params)
        results: Sequence[Any] = [
            expand_complex.unpack(x, _legal_aval(var.aval, trace.target))
            for x, var in zip(found, equation.outputs, strict=True)
        ]
    else:
        results = equation.primitive.bind_all(operands, params)
    values.update(zip(equation.outputs, results, strict=True))


def _scalar(atom: Literal, target: Target) -> Any:
    return atom.value if target.native_f64 else _narrow_scalar(atom)


def _narrow_scalar(atom: Literal) -> Any:
    narrow = _NARROW.get(atom.aval.dtype)
    if narrow is None:
        return atom.value
    with np.errstate(over="ignore"):
        return np.asarray(atom.value).astype(narrow)[()]


def _as_target(value: Any, target: Target) -> Any:
    """A constant's array with the dtype its buffer has on the target."""
    aval = aval_of(value)
    if isinstance(value, Tracer) or (target.native_f64 and not is_complex(aval.dtype)):
        return value
    narrow = aval.dtype if target.native_f64 else _NARROW.get(aval.dtype, aval.dtype)
    if narrow == aval.dtype and not is_complex(narrow):
        return value
    with np.errstate(over="ignore"):
        array = np.asarray(value).astype(narrow)
    return np.stack([array.real, array.imag], -1) if is_complex(narrow) else array
