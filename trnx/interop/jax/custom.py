"""Rules of calls with derivatives of their own: JAX's custom_jvp and custom_vjp."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.extend.core
import numpy as np

from trnx.core import aval_of, constants_to_inputs, dtypes, trace_program
from trnx.interop.jax.importer import run_jaxpr
from trnx.interop.jax.registry import Site, Value, rule
from trnx.ops import functions as op
from trnx.ops.custom import JvpRule, PullBack, VjpRule, custom_jvp_p, custom_vjp_p


def _bind(site: Site, primitive: Any, closed: Any, operands: Sequence[Value], rule: Any) -> Any:
    avals = [aval_of(x).strong() for x in operands]
    traced = trace_program(lambda *args: site.run(closed, args), avals, rule.name)
    program, constants = constants_to_inputs(traced)
    given = [_as_array(x) for x in operands]
    return primitive.bind(*constants, *given, program=program, rule=rule, consts=len(constants))


def _as_array(x: Value) -> Value:
    aval = aval_of(x)
    return op.convert(x, aval.dtype) if aval.weak else x


@dataclass(frozen=True)
class _Jvp(JvpRule):
    """A `jax.custom_jvp` rule: JAX traces it, trnx runs the jaxpr."""

    derive: Any
    """``derive(*in_zeros) -> (jaxpr, constants, out_zeros)`` of JAX."""

    def jvp(
        self, primals: Sequence[Value], tangents: Sequence[Value]
    ) -> tuple[list[Value], list[Value]]:
        # Integers have tangents without values in JAX; their rules see symbolic zeros.
        zeros = [not dtypes.is_inexact(aval_of(x).dtype) for x in primals]
        jaxpr, constants, out_zeros = self.derive.call_wrapped(*zeros)
        closed = jax.extend.core.ClosedJaxpr(jaxpr, constants)
        kept = [t for t, zero in zip(tangents, zeros, strict=True) if not zero]
        results = run_jaxpr(closed, [*primals, *kept])
        outs = results[: len(out_zeros)]
        found = iter(results[len(out_zeros) :])
        return outs, [
            _zero_tangent(out) if zero else next(found)
            for out, zero in zip(outs, out_zeros, strict=True)
        ]


def _zero_tangent(out: Value) -> Value:
    aval = aval_of(out)
    dtype = aval.dtype if dtypes.is_inexact(aval.dtype) else dtypes.float32
    return op.zeros_like(aval.with_dtype(dtype))


@rule("custom_jvp_call")
def _custom_jvp(
    site: Site, *operands: Value, call_jaxpr: Any, jvp_jaxpr_fun: Any, **_: Any
) -> list[Value]:
    name = str(getattr(call_jaxpr.jaxpr.debug_info, "func_name", "custom_jvp"))
    return list(_bind(site, custom_jvp_p, call_jaxpr, operands, _Jvp(name, jvp_jaxpr_fun)))


@dataclass(frozen=True)
class _PullBack(PullBack):
    """The backward half of a `jax.custom_vjp` rule."""

    backward: Any

    def cotangents(self, residuals: Sequence[Value], cts: Sequence[Value]) -> list[Value]:
        shapes = [
            jax.ShapeDtypeStruct(aval_of(x).shape, aval_of(x).dtype) for x in (*residuals, *cts)
        ]
        given: list[bool] = []

        def arrays(*values: Any) -> list[Any]:
            call = getattr(self.backward, "call_wrapped", self.backward)
            found = call(*values)
            given[:] = [_has_value(ct) for ct in found]
            return [ct for ct in found if _has_value(ct)]

        closed = jax.make_jaxpr(arrays)(*shapes)
        results = iter(run_jaxpr(closed, [*residuals, *cts]))
        return [next(results) if has else None for has in given]


def _has_value(ct: Any) -> bool:
    """Whether a cotangent of JAX is an array: integers get none, and zeros may be symbolic."""
    return isinstance(ct, np.ndarray | jax.Array) and ct.dtype != jax.dtypes.float0


@dataclass(frozen=True)
class _Vjp(VjpRule):
    """A `jax.custom_vjp` rule: JAX traces both halves, trnx runs the jaxprs."""

    forward_rule: Any
    """``forward_rule(*in_zeros) -> (jaxpr, constants)`` of JAX."""
    backward: Any
    out_trees: Any
    outputs: int

    def forward(self, args: Sequence[Value]) -> tuple[Sequence[Value], Sequence[Value], PullBack]:
        call = getattr(self.forward_rule, "call_wrapped", self.forward_rule)
        jaxpr, constants = call(*[False] * len(args))
        closed = jax.extend.core.ClosedJaxpr(jaxpr, constants)
        results = run_jaxpr(closed, args)
        # A residual that is an argument is no result of the forward jaxpr; JAX says which it is.
        *_, forwarded = self.out_trees()
        count = len(results) - self.outputs
        saved, outs = iter(results[:count]), results[count:]
        residuals = [next(saved) if at is None else args[at] for at in forwarded]
        return outs, residuals, _PullBack(self.name, self.backward)


@rule("custom_vjp_call", "custom_vjp_call_jaxpr")
def _custom_vjp(
    site: Site,
    *operands: Value,
    call_jaxpr: Any,
    fwd_jaxpr_thunk: Any,
    bwd: Any,
    out_trees: Any = None,
    **_: Any,
) -> list[Value]:
    name = str(getattr(call_jaxpr.jaxpr.debug_info, "func_name", "custom_vjp"))
    rule = _Vjp(name, fwd_jaxpr_thunk, bwd, out_trees, len(site.results))
    return list(_bind(site, custom_vjp_p, call_jaxpr, operands, rule))
