"""Random legal programs compute on the host what the simulator says."""

from __future__ import annotations

from hypothesis import given

from tests.host.native import run_native
from tests.sim.random_programs import RandomCase, random_case
from trnx.compiler.sim import simulate


@given(random_case())
def test_host_agrees_with_simulator(case: RandomCase) -> None:
    """Integer, select and move results bit-equal, floats within the forward error bound."""
    expected = simulate(case.program, case.inputs).outputs
    case.check(run_native(case.program, case.inputs), expected)
