"""Random legal programs run clean in the simulator; the estimate walks them in the same time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

from tests.sim.random_programs import RandomCase, random_case
from trnx.compiler.sim import estimate, simulate
from trnx.compiler.sim.estimate import Estimate
from trnx.compiler.sim.walk import Walk
from trnx.compiler.tile.ir import RegisterLoad, walk


@given(random_case())
def test_scheduled_programs_have_no_findings(case: RandomCase) -> None:
    """What place and schedule make is free of races, poison and overflow; runs repeat exactly."""
    first = simulate(case.program, case.inputs)
    assert not first.findings, "\n".join(map(str, first.findings))
    case.check(simulate(case.program, case.inputs).outputs, first.outputs)
    assert all(np.isfinite(o.astype(np.float64)).all() for o in first.outputs)


@given(random_case(target="trn2"))
def test_estimate_equals_simulated_time(case: RandomCase) -> None:
    """Without data the walk takes the same modelled time (no loaded registers involved)."""
    if any(isinstance(s, RegisterLoad) for k in case.program.kernels for s in walk(k.body)):
        return
    simulated = simulate(case.program, case.inputs).cost
    assert estimate(case.program).total_us == pytest.approx(simulated.total_us, rel=1e-9)


@given(random_case())
def test_closed_form_of_loops_is_exact(case: RandomCase) -> None:
    """Adding repeated iterations at once gives what walking each of them gives."""
    plain = Estimate(case.program, (), {}, 1)
    plain.for_loop = lambda loop: Walk.for_loop(plain, loop)  # type: ignore[method-assign]
    plain.run()
    assert estimate(case.program).total_us == pytest.approx(plain.clock.total_ns / 1e3, rel=1e-9)
