"""Columns that go through the compiler: host code, simulator, derivatives in native f64.

All calls of a primitive are one program per target, because a kernel costs far less to compile than
an executable. Every case and every dtype is covered; the nightly run takes every pair of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from tests.ops import columns
from tests.ops.table import Call, NumpyArray, NumpyEvaluation, assert_close, calls, reference
from trnx.compiler.kernels.registry import has_lowering, kind_of
from trnx.compiler.passes.expand import EXPANSIONS
from trnx.compiler.pipeline import compile_program
from trnx.compiler.sim.machine import SimOptions, simulate
from trnx.compiler.targets import target as find_target
from trnx.core import Params, Primitive, Program, RecordTrace, aval_of, dtypes
from trnx.core.tracing import use_trace
from trnx.ops.complex import PART
from trnx.runtime.convert import from_host
from trnx.runtime.devices import CPU, NEURON
from trnx.runtime.programs import executable_for
from trnx.transforms.jvp import jvp_flat
from trnx.transforms.linearize import linearize_flat
from trnx.transforms.transpose import backward_pass
from trnx.transforms.zeros import instantiate_all, zero_of

DEVICES = {"neuron": NEURON, "cpu": CPU}

# 64-bit arithmetic is for the cpu row of the target table: a NeuronCore has none.
_WIDE = frozenset({dtypes.float64, dtypes.int64, dtypes.uint64, dtypes.complex128})


def lowering_of(primitive: Primitive) -> str:
    """How the compiler treats a primitive: a kernel family, array code, or a host call."""
    if primitive.name == "dim_size":
        return "pad or specialise"  # a symbolic size is gone before code is made
    expands = primitive.name in EXPANSIONS
    if has_lowering(primitive.name):
        return kind_of(primitive.name).value + (", some types expand" if expands else "")
    if expands:
        return "expansion"
    return "composite" if primitive.composite is not None else "host call"


def runs_on(call: Call, target: str) -> bool:
    """Whether a call has a meaning of its own on a target."""
    outs = call.primitive.out_avals(call.avals, call.params)
    used = {*call.dtypes, *(aval.dtype for aval in outs)}
    row = find_target(DEVICES[target].target)
    held = {PART.get(dtype, dtype) for dtype in used}  # complex numbers are pairs of tiles
    return all(map(row.holds, held)) and (target == "cpu" or not used & _WIDE)


def chosen(primitive: Primitive, target: str, every: bool) -> list[Call]:
    """Calls to compile: each case and each dtype at least once, or every pair."""
    found = [call for call in calls(primitive) if runs_on(call, target)]
    if every:
        return found
    picked: list[Call] = []
    seen_cases: set[int] = set()
    used: dict[tuple[np.dtype[Any], ...], int] = {}
    by_case: dict[int, list[Call]] = {}
    for call in found:
        by_case.setdefault(call.number, []).append(call)
        used.setdefault(call.dtypes, 0)
    for number, options in by_case.items():
        best = min(options, key=lambda call: used[call.dtypes])
        used[best.dtypes] += 1
        seen_cases.add(number)
        picked.append(best)
    for call in found:
        if used[call.dtypes] == 0 and call.case.shapes not in (((),), ()):
            used[call.dtypes] += 1
            picked.append(call)
    return picked


def program_of(wanted: Sequence[Call]) -> Program:
    """One program with the operands of all calls as inputs and their results as outputs."""
    trace = RecordTrace("table")
    try:
        with use_trace(trace):
            outs: list[Any] = []
            for call in wanted:
                operands = [trace.add_input(aval) for aval in call.avals]
                outs += call.primitive.bind_all(operands, call.params)
            return trace.build(outs)
    finally:
        trace.end()


@cache
def expected(primitive: Primitive, target: str, every: bool) -> list[tuple[Call, list[NumpyArray]]]:
    """The chosen calls with their reference results."""
    return [
        (call, reference(primitive, call.operands(), call.case.params))
        for call in chosen(primitive, target, every)
    ]


def _inputs(wanted: Sequence[Call]) -> list[NumpyArray]:
    return [x for call in wanted for x in call.operands()]


def _memory(x: NumpyArray) -> NumpyArray:
    """An operand as buffers have it: complex numbers are pairs of real ones."""
    if not dtypes.is_complex(x.dtype):
        return x
    return np.stack([x.real, x.imag], -1)


def _compare(
    results: Sequence[Any], wanted: list[tuple[Call, list[NumpyArray]]], what: str
) -> None:
    values = iter(results)
    failures = []
    for call, outs in wanted:
        for want in outs:
            got = np.asarray(next(values))
            if dtypes.is_complex(want.dtype) and not dtypes.is_complex(got.dtype):
                got = np.ascontiguousarray(got).view(want.dtype)  # parts, as memory has them
            try:
                call.compare(got.reshape(want.shape), want, what)
            except AssertionError as error:
                failures.append(str(error))
    assert not failures, f"{len(failures)} calls differ:\n" + "\n".join(failures[:12])


def check_host(primitive: Primitive, target: str, every: bool) -> None:
    """Native code gives the reference's results, and the same bits on a second call."""
    wanted = expected(primitive, target, every)
    if not wanted:
        return
    only = [call for call, _ in wanted]
    device = DEVICES[target]
    executable = executable_for(program_of(only), device, kind="op")
    operands = [from_host(x, device=device) for x in _inputs(only)]
    first = [np.asarray(x) for x in executable(operands)]
    _compare(first, wanted, f"host code for {target}")
    for one, two in zip(first, executable(operands), strict=True):
        assert one.tobytes() == np.asarray(two).tobytes(), "a second run gives other bits"


def check_sim(primitive: Primitive, target: str, every: bool) -> None:
    """The simulator gives the reference's results, and finds no hazard."""
    wanted = expected(primitive, target, every)
    if not wanted:
        return
    only = [call for call, _ in wanted]
    name = DEVICES[target].target
    program = compile_program(program_of(only), name)
    options = SimOptions(timeline=False)
    result = simulate(program, list(map(_memory, _inputs(only))), options=options)
    assert not result.findings, result.findings[:3]
    _compare(result.outputs, wanted, f"simulator of {target}")


# ---------------------------------------------------------------- IEEE's special values
def special_operands(primitive: Primitive, dtype: np.dtype[Any], target: str) -> list[NumpyArray]:
    """Every pair of zeros, infinities, NaN, tiny, huge and ordinary values."""
    values = columns.special_values(dtype)
    size = np.abs(values.astype(np.float64))
    kept = np.ones(values.size, bool)
    if target == "neuron" and dtype.itemsize >= 4:
        kept &= (size == 0) | ~(size < 1e-38)  # subnormals may be flushed there
    if "huge" in primitive.tests.skips:
        kept &= ~((size > 1e5) & np.isfinite(size))
    values = values[kept]
    if len(primitive.tests.cases[0].shapes) == 1:
        return [values]
    return [np.repeat(values, values.size), np.tile(values, values.size)]


def check_special(primitive: Primitive, target: str, dtype: np.dtype[Any]) -> None:
    """Native code treats special values as the reference does."""
    operands = special_operands(primitive, dtype, target)
    params = dict(primitive.tests.cases[0].params)
    trace = RecordTrace("special")
    try:
        with use_trace(trace):
            inputs = [trace.add_input(aval_of(x)) for x in operands]
            program = trace.build(primitive.bind_all(inputs, Params(params)))
    finally:
        trace.end()
    executable = executable_for(program, DEVICES[target], kind="op")
    (got,) = executable([from_host(x, device=DEVICES[target]) for x in operands])
    (want,) = reference(primitive, operands, params)
    bound = primitive.tests.tolerance.get(dtypes.short_name(want.dtype), 0.0)
    if bound and np.asarray(want).dtype.kind != "b":
        assert_close(got, want, bound, primitive.name, floor=0.0)
        return
    got, want = np.asarray(got), np.asarray(want)
    same = (got == want) | ((got != got) & (want != want))
    shown = [tuple(x[~same][:5]) for x in (*operands, got, want)]
    assert same.all(), f"{primitive.name}: operands, result and reference differ: {shown}"


# ---------------------------------------------------------------- derivatives, native f64
def _derivatives(call: Call, operands: Sequence[Any], tangents: Sequence[Any]) -> list[Any]:
    """Output tangents, then the cotangents that <J t> itself pulls back, as traced values."""
    which = columns.differentiable(call)
    function = columns.floats_of(call)
    given = iter(tangents)
    full = [next(given) if i in which else zero_of(x) for i, x in enumerate(operands)]
    _, outs = jvp_flat(function, operands, full)
    nonzero = [i in which for i in range(len(operands))]
    linearized = linearize_flat(function, operands, nonzero)
    cts = [out for out, flag in zip(outs, linearized.out_nonzero, strict=True) if flag]
    count = len(which)
    grads = backward_pass(linearized.program, (True,) * count, [None] * count, cts)
    return instantiate_all([*outs, *grads])


def check_derivatives(primitive: Primitive, every: bool) -> None:
    """Compiled f64 derivatives: jvp equals differences, vjp is its adjoint.

    The cotangent pulled back is J t itself, so <t, J^T J t> must equal |J t|^2.
    """
    record = primitive.tests
    wanted = [
        call
        for call in chosen(primitive, "cpu", every=True)
        if columns.differentiable(call) and not {"jvp", "transpose"} & record.skips.keys()
    ]
    if record.grad_order == 0 or not wanted:
        return
    if not every:
        wanted = [call for call in wanted if sum(x.size for x in call.operands()) < 1000]
    all_tangents = [columns.tangents_of(call) for call in wanted]
    trace = RecordTrace("derivatives")
    values: list[NumpyArray] = []
    outs: list[Any] = []
    counts: list[int] = []
    try:
        with use_trace(trace):
            for call, tangents in zip(wanted, all_tangents, strict=True):
                arrays = [*call.operands(), *tangents]
                values += arrays
                inputs = [trace.add_input(aval_of(x)) for x in arrays]
                count = len(call.avals)
                results = _derivatives(call, inputs[:count], inputs[count:])
                counts.append(len(results))
                outs += results
            program = trace.build(outs)
    finally:
        trace.end()
    executable = executable_for(program, CPU, kind="op")
    found = iter(executable([from_host(x, device=CPU) for x in values]))
    for call, tangents, count in zip(wanted, all_tangents, counts, strict=True):
        results = [np.asarray(next(found)) for _ in range(count)]
        jvps, grads = results[: count - len(tangents)], results[count - len(tangents) :]
        with NumpyEvaluation():
            wants = columns.differences_of(call, tangents)
        for got, want in zip(jvps, wants, strict=True):
            if np.isfinite(want).all():
                assert_close(got, want, 2e-6, f"compiled jvp of {call.name}")
        # Of complex products the real part counts, see `columns.check_transpose`.
        left = sum(float(np.sum(t * g).real) for t, g in zip(tangents, grads, strict=True))
        right = sum(float(np.sum(x * x).real) for x in jvps)
        size = sum(float(np.sum(np.abs(x) ** 2)) for x in jvps)
        assert abs(left - right) <= 1e-9 * max(1.0, size), (call.name, left, right)
