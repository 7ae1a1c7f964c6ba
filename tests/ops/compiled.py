"""Columns that go through the compiler: host code, simulator, and a second call from the cache.

All calls of a primitive are one program per target, because a kernel costs far less to compile than
an executable. Every case and every dtype is covered; the nightly run takes every pair of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from tests.ops.table import Call, NumpyArray, calls, reference
from trnx.compiler.pipeline import compile_program
from trnx.compiler.sim.machine import SimOptions, simulate
from trnx.compiler.targets import target as find_target
from trnx.core import Primitive, Program, RecordTrace, dtypes
from trnx.core.tracing import use_trace
from trnx.runtime.convert import from_host
from trnx.runtime.devices import CPU, NEURON
from trnx.runtime.programs import executable_for

DEVICES = {"neuron": NEURON, "cpu": CPU}

# 64-bit arithmetic is for the cpu row of the target table: a NeuronCore has none.
_WIDE = frozenset({dtypes.float64, dtypes.int64, dtypes.uint64})


def runs_on(call: Call, target: str) -> bool:
    """Whether a call has a meaning of its own on a target."""
    outs = call.primitive.out_avals(call.avals, call.params)
    used = {*call.dtypes, *(aval.dtype for aval in outs)}
    if any(map(dtypes.is_complex, used)):
        return False  # complex arithmetic has no tile form; it is refused by name
    row = find_target(DEVICES[target].target)
    return all(map(row.holds, used)) and (target == "cpu" or not used & _WIDE)


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


def _compare(
    results: Sequence[Any], wanted: list[tuple[Call, list[NumpyArray]]], what: str
) -> None:
    values = iter(results)
    failures = []
    for call, outs in wanted:
        for want in outs:
            got = np.asarray(next(values))
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
    result = simulate(program, _inputs(only), options=options)
    assert not result.findings, result.findings[:3]
    _compare(result.outputs, wanted, f"simulator of {target}")
