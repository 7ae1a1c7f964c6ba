"""Pad: run a program of symbolic sizes inside buffers of fixed, larger sizes.

A named size ``n`` gets a bucket, an upper bound. Every array keeps its true shape in its type and
lives in a buffer whose sizes are the largest the true ones can be; what is beyond the true sizes is
garbage that must never reach a valid element. Each primitive's pad rule says how: pass garbage
through, mask it with the identity of a reduction first, or use the true size where size is a value.

The result is a static program. Its inputs are the padded arrays followed by one int32 scalar per
named size, its outputs are padded too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trnx.core import (
    Aval,
    Dim,
    DimVar,
    Params,
    Primitive,
    Program,
    Size,
    Trace,
    Tracer,
    aval_of,
    bounds,
    dtypes,
    eval_program,
    evaluate,
    trace_program,
)
from trnx.core.dims import DimQuotient, variables
from trnx.core.errors import DimError, TraceError, message
from trnx.core.program import constants_to_inputs, dim_variables, sub_programs
from trnx.core.program_cache import cached_by_program
from trnx.core.source import current_source
from trnx.core.tracing import current_trace, use_trace
from trnx.ops import functions as op
from trnx.transforms.factored import factor_merges
from trnx.transforms.inline import inline_calls
from trnx.transforms.specialise import substitute_value

# Sizes of one name that do not grow with it are maximised by trying every value up to this many.
_ENUMERATION_LIMIT = 1 << 16

Shape = tuple[Size, ...]


class PadTracer(Tracer):
    """A padded buffer of the parent trace; the aval has the true, symbolic shape."""

    __slots__ = ("value",)

    def __init__(self, trace: PadTrace, value: Any, aval: Aval) -> None:
        self._trace = trace
        self.aval = aval
        self.source = current_source()
        self.value = value

    def provenance(self) -> str:
        return self.value.provenance() if isinstance(self.value, Tracer) else ""


class PadContext:
    """What pad rules get: true and padded sizes, and masking.

    Args:
        buckets: upper bound per name.
        true_sizes: int32 scalar per name.
    """

    __slots__ = ("_padded", "_true", "_variables", "buckets")

    def __init__(self, buckets: Mapping[str, int], true_sizes: Mapping[str, Any]) -> None:
        self.buckets = dict(buckets)
        self._variables = dict(true_sizes)
        self._padded: dict[Dim, int] = {}
        self._true: dict[Dim, Any] = {}

    def is_padded(self, size: Size) -> bool:
        """True when the true size may be smaller than the buffer's."""
        return isinstance(size, Dim)

    def padded(self, size: Size) -> int:
        """Size of the buffer: the largest value the true size can have within the buckets."""
        if not isinstance(size, Dim):
            return size
        known = self._padded.get(size)
        if known is None:
            known = self._padded[size] = largest(size, self.buckets)
        return known

    def padded_shape(self, shape: Shape) -> tuple[int, ...]:
        """:meth:`padded` for every axis."""
        return tuple(self.padded(size) for size in shape)

    def true_size(self, size: Size) -> Any:
        """The true size as an int32 scalar; a NumPy scalar when it is static."""
        if not isinstance(size, Dim):
            return np.int32(size)
        known = self._true.get(size)
        if known is None:
            known = self._true[size] = self._computed(size)
        return known

    def _computed(self, size: Dim) -> Any:
        total: Any = None
        for monomial, factor in size._terms:
            term: Any = None
            for atom, power in monomial:
                if isinstance(atom, DimVar):
                    base = self._variables[atom.name]
                else:
                    base = self._quotient(atom)
                for _ in range(power):
                    term = base if term is None else op.mul(term, base)
            if term is None:
                term = np.int32(factor)
            elif factor != 1:
                term = op.mul(term, np.int32(factor))
            total = term if total is None else op.add(total, term)
        return total

    def _quotient(self, atom: DimQuotient) -> Any:
        function = op.floor_divide if atom.operator == "//" else op.remainder
        return function(self.true_size(atom.numerator), self.true_size(atom.denominator))

    def pad(self, program: Program) -> tuple[Program, list[Any]]:
        """A sub-program in buffers, and the true sizes to pass to it.

        Returns:
            A static program that takes int32 scalars, the true sizes, and then the padded inputs;
            and these scalars. A program without symbolic sizes comes back as it is.
        """
        names = tuple(variable.name for variable in dim_variables(program))
        if not names:
            return program, []
        limits = tuple(sorted((name, self.buckets[name]) for name in names))
        return _padded_inner(program, limits), [self._variables[name] for name in names]

    def mask(self, value: Any, shape: Sequence[Size], fill: Any) -> Any:
        """`value` with `fill` beyond the true sizes.

        Args:
            value: a padded buffer.
            shape: true size per axis where to mask; the buffer's own int leaves an axis alone.
            fill: a scalar of the buffer's dtype, for example the identity of a reduction.
        """
        own = aval_of(value).shape
        inside: Any = None
        for axis, size in enumerate(shape):
            if not isinstance(size, Dim):
                continue
            valid = op.lt(op.iota((own[axis],), 0), self.true_size(size))
            valid = op.broadcast(valid, own, (axis,))
            inside = valid if inside is None else op.bitwise_and(inside, valid)
        return value if inside is None else op.select(inside, value, fill)


def largest(size: Size, buckets: Mapping[str, int]) -> int:
    """The largest value of a size when every name goes from its least value to its bucket.

    Raises:
        DimError: a name has no bucket, or no bound is found for the size.
    """
    if not isinstance(size, Dim):
        return size
    named = variables(size)
    limited = substitute_value(size, {v.name: _limited(v, buckets) for v in named})
    _, high = bounds(limited)
    at_buckets = evaluate(size, {v.name: buckets[v.name] for v in named})
    if high == at_buckets:
        return at_buckets
    if len(named) == 1 and buckets[named[0].name] - named[0].min < _ENUMERATION_LIMIT:
        name, low = named[0].name, named[0].min
        return max(evaluate(size, {name: value}) for value in range(low, buckets[name] + 1))
    if high is None:
        raise DimError(
            message(f"Size {size} has no largest value", None, "Give its names upper bounds")
        )
    return high


def _limited(variable: DimVar, buckets: Mapping[str, int]) -> Dim:
    bucket = buckets.get(variable.name)
    if bucket is None:
        raise DimError(
            message(f"Size {variable.name} has no bucket", None, f"Give one for {variable.name}")
        )
    if bucket < variable.min or (variable.max is not None and bucket > variable.max):
        top = "" if variable.max is None else variable.max
        raise DimError(
            message(
                f"The bucket {bucket} of size {variable.name} is outside {variable.min}..{top}",
                None,
                "Use a bucket within the bounds",
            )
        )
    return Dim(((((DimVar(variable.name, variable.min, bucket), 1),), 1),))


class PadTrace(Trace):
    """Applies pad rules to equations that have a symbolic size anywhere."""

    __slots__ = ("context",)

    kind = "padding"

    def __init__(self, parent: Trace, context: PadContext, name: str = "") -> None:
        super().__init__(parent, name)
        self.context = context

    def split(self, operand: Any) -> tuple[Any, Aval]:
        """Buffer and true type of an operand."""
        if isinstance(operand, PadTracer) and operand._trace is self:
            return operand.value, operand.aval
        if isinstance(operand, Tracer):
            self.check_operand(operand)
        return operand, aval_of(operand)

    def process(
        self, primitive: Primitive, operands: Sequence[Any], params: Params
    ) -> Sequence[Any]:
        assert self.parent is not None
        pairs = [self.split(operand) for operand in operands]
        values = [value for value, _ in pairs]
        avals = tuple(aval for _, aval in pairs)
        out_avals = primitive.out_avals(avals, params)
        static = all(aval.is_static for aval in (*avals, *out_avals))
        token = current_trace.set(self.parent)
        try:
            if static and not _has_sizes(params):
                return self.parent.process(primitive, values, params)
            rule = primitive.rule("pad")
            result = rule(self.context, values, [aval.shape for aval in avals], **params)
            outs = result if primitive.multiple_results else (result,)
            return [
                self.join(primitive, out, aval) for out, aval in zip(outs, out_avals, strict=True)
            ]
        finally:
            current_trace.reset(token)

    def join(self, primitive: Primitive, value: Any, aval: Aval) -> Any:
        """A tracer for a buffer of the true type `aval`; the value itself when it is static."""
        own = aval_of(value)
        wanted = self.context.padded_shape(aval.shape)
        if own.shape != wanted or own.dtype != aval.dtype:
            raise TraceError(
                message(
                    f"The pad rule of {primitive.name} gives a buffer {own} for {aval}, "
                    f"which needs sizes {wanted}",
                    None,
                    f"Correct the rule in {primitive.file}",
                )
            )
        return value if aval.is_static else PadTracer(self, value, aval)


def _has_sizes(params: Params) -> bool:
    def visit(value: Any) -> bool:
        if isinstance(value, Dim):
            return True
        if isinstance(value, tuple):
            return any(map(visit, value))
        return isinstance(value, Aval) and not value.is_static

    return any(map(visit, params.values())) or any(
        dim_variables(inner) for _, inner in sub_programs(params)
    )


@dataclass(frozen=True, slots=True)
class Padded:
    """A program in buffers.

    Attributes:
        program: static; takes the padded inputs and then the true sizes, returns padded outputs.
        buckets: upper bound per name.
        size_names: names of the true-size inputs, in order.
        true_in_shapes: shape of each array input within its buffer, symbolic.
        true_out_shapes: shape of each output within its buffer, symbolic.
    """

    program: Program
    buckets: dict[str, int]
    size_names: tuple[str, ...]
    true_in_shapes: tuple[Shape, ...]
    true_out_shapes: tuple[Shape, ...]

    def in_shapes(self, sizes: Mapping[str, int]) -> tuple[tuple[int, ...], ...]:
        """Shapes of the valid part of the inputs for these true sizes."""
        return _evaluated(self.true_in_shapes, sizes)

    def out_shapes(self, sizes: Mapping[str, int]) -> tuple[tuple[int, ...], ...]:
        """Shapes of the valid part of the outputs for these true sizes."""
        return _evaluated(self.true_out_shapes, sizes)


def _evaluated(shapes: Sequence[Shape], sizes: Mapping[str, int]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(evaluate(size, sizes) for size in shape) for shape in shapes)


def pad_program(program: Program, buckets: Mapping[str, int]) -> Padded:
    """Turn a program of symbolic sizes into a static one over padded buffers.

    Args:
        program: its inputs may have any sizes made from named ones.
        buckets: upper bound per name.

    Returns:
        The padded program; see :class:`Padded`. For true sizes up to the buckets its outputs hold,
        within their true shapes, the values of the original program.

    Raises:
        DimError: a name has no bucket, or one out of its bounds.
        RuleError: a primitive has no pad rule.
    """
    closed, constants = constants_to_inputs(factor_merges(inline_calls(program)))
    names = tuple(variable.name for variable in dim_variables(closed))
    limits = {name: buckets[name] for name in names if name in buckets}
    sizing = PadContext(limits, {})
    avals = [aval.with_shape(sizing.padded_shape(aval.shape)) for aval in closed.in_avals]
    for name in names:
        if name not in limits:
            raise DimError(message(f"Size {name} has no bucket", None, f"Give one for {name}"))

    def run(*values: Any) -> list[Any]:
        true_sizes = dict(zip(names, values[len(closed.inputs) :], strict=True))
        return _run_padded(closed, values[: len(closed.inputs)], PadContext(limits, true_sizes))

    sizes = [Aval((), dtypes.int32)] * len(names)
    padded = trace_program(run, [*avals, *sizes], program.name)
    count = len(constants)
    pairs = tuple(zip(padded.inputs[:count], constants, strict=True))
    return Padded(
        padded.replace(inputs=padded.inputs[count:], constants=(*pairs, *padded.constants)),
        limits,
        names,
        tuple(aval.shape for aval in program.in_avals),
        tuple(aval.shape for aval in program.out_avals),
    )


def _run_padded(program: Program, buffers: Sequence[Any], context: PadContext) -> list[Any]:
    """Output buffers of a program of symbolic sizes, under the current trace."""
    trace = PadTrace(current_trace.get(), context, program.name)
    try:
        with use_trace(trace):
            args = [
                value if aval.is_static else PadTracer(trace, value, aval)
                for value, aval in zip(buffers, program.in_avals, strict=True)
            ]
            return [trace.split(out)[0] for out in eval_program(program, args)]
    finally:
        trace.end()


@cached_by_program
def _padded_inner(program: Program, buckets: tuple[tuple[str, int], ...]) -> Program:
    """The program with its true sizes as leading inputs, sorted by name, and padded others."""
    limits = dict(buckets)
    sizing = PadContext(limits, {})
    body = factor_merges(program)

    def run(*values: Any) -> list[Any]:
        true_sizes = dict(zip(limits, values[: len(limits)], strict=True))
        return _run_padded(body, values[len(limits) :], PadContext(limits, true_sizes))

    avals = [aval.with_shape(sizing.padded_shape(aval.shape)) for aval in program.in_avals]
    sizes = [Aval((), dtypes.int32)] * len(limits)
    return trace_program(run, [*sizes, *avals], program.name)
