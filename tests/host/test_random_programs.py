"""Random legal programs compute on the host what the simulator says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from tests.host.cpus import CPUS
from tests.host.native import Array, run_native
from tests.host.random_rows import random_rows
from tests.sim.random_programs import RandomCase, random_case
from trnx.compiler.sim import simulate
from trnx.compiler.tile.ir import TileProgram


@given(random_case())
def test_host_agrees_with_simulator(case: RandomCase) -> None:
    """Integer, select and move results bit-equal, floats within the forward error bound."""
    expected = simulate(case.program, case.inputs).outputs
    case.check(run_native(case.program, case.inputs), expected)


@pytest.mark.parametrize("cpu", [name for name in CPUS if name != "own"])
@settings(max_examples=12)
@given(case=random_case())
def test_code_for_lesser_cpus_agrees(cpu: str, case: RandomCase) -> None:
    """Narrower vectors, no masks, no fused multiply-add."""
    expected = simulate(case.program, case.inputs).outputs
    case.check(run_native(case.program, case.inputs, cpu=CPUS[cpu]), expected)


@given(random_rows())
def test_row_groups_are_exact(case: tuple[TileProgram, list[Array]]) -> None:
    """Views, broadcasts, reductions and overwrites of exact values: bit-equal."""
    program, inputs = case
    for got, want in zip(
        run_native(program, inputs), simulate(program, inputs).outputs, strict=True
    ):
        np.testing.assert_array_equal(got, want)
