"""Random array programs: native code on both devices and the simulator against high precision."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given

import trnx
from tests.fuzz.bounded import differs
from tests.fuzz.programs import RandomProgram, arguments, random_program


def check(program: RandomProgram, got: list[Any], args: list[Any], narrow: bool, how: str) -> None:
    """Every result within its bound."""
    for number, (result, wanted) in enumerate(zip(got, program.meaning(args, narrow), strict=True)):
        wrong = differs(result, wanted)
        assert not wrong, f"{how}: output {number}: {wrong}\n{program}"


@pytest.mark.parametrize("device", ["neuron", "cpu"])
@given(case=random_program())
def test_values(device: str, case: tuple[RandomProgram, int]) -> None:
    """A jitted program is right to the precision of its dtypes."""
    program, seed = case
    args = arguments(program, seed)
    with trnx.use_device(device), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(program, trnx.jit(program.run)(*args), args, device == "neuron", device)
