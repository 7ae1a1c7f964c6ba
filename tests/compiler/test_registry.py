"""Lowerings join with declarations: every primitive has a way to every target."""

from __future__ import annotations

import pytest

from trnx.compiler import pipeline as pipeline
from trnx.compiler.kernels.elementwise import ALU, FUNCTIONS
from trnx.compiler.kernels.registry import KINDS, RULES, Kind, declare, kind_of
from trnx.compiler.passes.expand import EXPANSIONS
from trnx.compiler.passes.simplify import RULES as SIMPLIFY
from trnx.compiler.tile import isa
from trnx.core import primitives

COMPILER_ONLY = {
    "copy", "high_word", "maximum_in_runs", "reciprocal", "scatter_rows", "silu", "sort_rows",
    "square", "update_at", "windows",
}  # fmt: skip
"""Names kernels use for nodes of their own; no primitive has them."""


def test_lowered_names_are_declared_primitives() -> None:
    """No lowering, expansion or simplification waits for a primitive that does not exist."""
    assert set(KINDS) - COMPILER_ONLY <= set(primitives)
    assert set(EXPANSIONS) <= set(primitives)
    assert set(SIMPLIFY) <= set(primitives)


def test_elementwise_and_reductions_have_a_rule() -> None:
    """These families look their instruction up by name."""
    for name, kind in KINDS.items():
        if kind in (Kind.ELEMENTWISE, Kind.REDUCE):
            assert name in RULES, name


def test_instruction_names_exist() -> None:
    """ALU operators and activation functions are those of the instruction set."""
    assert set(ALU.values()) <= set(isa.ALU)
    assert set(FUNCTIONS.values()) <= set(isa.ACTIVATIONS)


def test_a_primitive_is_entered_once() -> None:
    with pytest.raises(ValueError, match="add is lowered as elementwise already"):
        declare(Kind.MOVEMENT, "add")


def test_unknown_primitives_go_to_the_host() -> None:
    assert kind_of("no_such_primitive") is Kind.HOST
