"""Random array programs: native code, simulator and transforms against high precision."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import trnx
from tests.fuzz.bounded import Bounded, differs
from tests.fuzz.programs import RandomProgram, arguments, random_program


def check(program: RandomProgram, got: Sequence[Any], wanted: Sequence[Bounded], how: str) -> None:
    """Every result within its bound."""
    assert len(got) == len(wanted)
    for number, (result, bound) in enumerate(zip(got, wanted, strict=True)):
        wrong = differs(result, bound)
        assert not wrong, f"{how}: output {number}: {wrong}\n{program}"


@pytest.fixture(autouse=True)
def _float64_is_narrowed_quietly() -> Any:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*float64.*")
        yield


@pytest.mark.parametrize("device", ["neuron", "cpu"])
@given(case=random_program())
def test_values(device: str, case: tuple[RandomProgram, int]) -> None:
    """A jitted program is right to the precision of its dtypes."""
    program, seed = case
    args = arguments(program, seed)
    with trnx.use_device(device):
        got = trnx.jit(program.run)(*args)
    check(program, got, program.meaning(args, device == "neuron"), device)


@pytest.mark.parametrize("device", ["neuron", "cpu"])
@given(case=random_program())
def test_simulated_values(device: str, case: tuple[RandomProgram, int]) -> None:
    """So is its tile program in the simulator, which finds no race and no uninitialised read."""
    program, seed = case
    args = arguments(program, seed)
    with trnx.use_device(device):
        result = trnx.jit(program.run).lower(*args).simulate()
    assert result.findings == (), f"{result.findings[0]}\n{program}"
    wanted = program.meaning(args, device == "neuron")
    # A narrowed output is a float32 buffer until the runtime widens it.
    got = [np.asarray(a).astype(b.dtype) for a, b in zip(result.outputs, wanted, strict=True)]
    check(program, got, wanted, f"{device} simulated")


@given(case=random_program(), mapped=st.lists(st.integers(0, 3), min_size=3, max_size=3))
def test_vmap(case: tuple[RandomProgram, int], mapped: list[int]) -> None:
    """Mapped over any axes of any inputs, a program gives what it gives for each example."""
    program, seed = case
    examples = [arguments(program, seed + i) for i in range(3)]
    in_axes: list[int | None] = []
    stacked: list[Any] = []
    for number, (shape, _) in enumerate(program.inputs):
        axis = min(mapped[number], len(shape) + 1) - 1
        if axis < 0 and (in_axes.count(None) < number or number + 1 < len(program.inputs)):
            in_axes.append(None)
            stacked.append(examples[0][number])
            for example in examples:
                example[number] = examples[0][number]
        else:
            in_axes.append(max(axis, 0))
            stacked.append(np.stack([e[number] for e in examples], max(axis, 0)))
    got = trnx.jit(trnx.vmap(program.run, in_axes=tuple(in_axes)))(*stacked)
    for place, example in enumerate(examples):
        results = [np.asarray(array)[place] for array in got]
        check(program, results, program.meaning(example, True), f"vmap{in_axes}")


@given(case=random_program(smooth=True))
def test_derivatives(case: tuple[RandomProgram, int]) -> None:
    """Forward, reverse and finite differences agree in float64."""
    program, seed = case
    args = arguments(program, seed)
    generator = np.random.default_rng(seed + 1)
    tangents = [np.asarray(generator.standard_normal(a.shape)) for a in args]
    weights = [np.asarray(generator.standard_normal(v.shape)) for v in program.meaning(args, False)]

    def loss(*values: Any) -> Any:
        total: Any = 0.0
        for weight, result in zip(weights, program.run(*values), strict=True):
            total = total + trnx.numpy.sum(weight * result)
        return total

    def exact(step: float) -> float:
        moved = [a + step * t for a, t in zip(args, tangents, strict=True)]
        results = program.meaning(moved, False)
        return sum(float(np.sum(w * r.value)) for w, r in zip(weights, results, strict=True))

    every = tuple(range(len(args)))
    with trnx.use_device("cpu"):
        value, gradients = trnx.jit(trnx.value_and_grad(loss, argnums=every))(*args)
        _, forward = trnx.jit(lambda a, t: trnx.jvp(loss, a, t))(tuple(args), tuple(tangents))
    reverse = sum(
        float(np.sum(np.asarray(g) * t)) for g, t in zip(gradients, tangents, strict=True)
    )
    scale = 1.0 + sum(float(np.sum(np.abs(w))) for w in weights) + abs(reverse)
    step = 1e-4
    near = [exact(step * k) for k in (-2, -1, 1, 2)]
    differences = (near[0] - 8 * near[1] + 8 * near[2] - near[3]) / (12 * step)
    assert value.item() == pytest.approx(exact(0.0), rel=1e-9, abs=1e-9 * scale), program
    assert float(forward) == pytest.approx(reverse, rel=1e-9, abs=1e-9 * scale), program
    assert reverse == pytest.approx(differences, rel=1e-6, abs=1e-6 * scale), program
