"""The simulator's instruction tests again, on native code: one meaning, two targets."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from tests.host.native import run_native
from tests.sim import programs
from tests.sim import test_instructions as cases
from tests.sim.programs import Array, Write, compile_program
from tests.sim.test_instructions import *  # noqa: F403

# The simulator words this error; programs that reach the host have passed legality.
del test_shape_mismatch_names_shapes_line_and_remedy  # noqa: F821


def _run(
    write: Write,
    inputs: Sequence[Array] = (),
    target: str = "trn2",
    registers: Sequence[int] = (),
    **options: Any,
) -> SimpleNamespace:
    program = compile_program(write, target)
    return SimpleNamespace(outputs=run_native(program, inputs, registers))


@pytest.fixture(autouse=True)
def on_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every ``run`` of the imported tests compiles and runs natively."""
    monkeypatch.setattr(programs, "run", _run)
    monkeypatch.setattr(cases, "run", _run)
