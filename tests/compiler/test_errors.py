"""What cannot be lowered says so in one sentence: primitive, dtypes, the user's line, a remedy."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from tests.compiler import harness as h
from trnx.compiler.pipeline import compile_program
from trnx.compiler.tile.ir import HostCall
from trnx.core import LoweringError, Primitive, primitives
from trnx.ops import functions as op


@pytest.fixture
def strange() -> Iterator[Primitive]:
    """A primitive nobody knows how to compute."""
    primitive = Primitive("strange_of_tests", abstract=lambda x: x)
    yield primitive
    del primitives[primitive.name]


def test_no_lowering_and_no_meaning(strange: Primitive) -> None:
    program = h.record(lambda x: strange.bind(op.exp(x)), ((3,), "f32"))
    with pytest.raises(
        LoweringError,
        match=r"strange_of_tests of f32\[3\] has no lowering to trn2 and no NumPy meaning to fall "
        r"back on \(at test_errors.py:\d+ \(<lambda>\)\)\. Write it with other functions",
    ):
        compile_program(program, "trn2")


def test_no_lowering_but_a_meaning_is_a_counted_call(strange: Primitive) -> None:
    """The call is in the program, between kernels, with its line; nothing is silent."""
    strange.def_reference(lambda x: x * 3)
    tiles = h.check(lambda x: op.exp(strange.bind(op.neg(op.exp(x)))), ((3,), "f32"))
    kinds = [type(call).__name__ for call in tiles.calls]
    assert kinds == ["KernelCall", "HostCall", "KernelCall"]
    call = tiles.calls[1]
    assert isinstance(call, HostCall) and call.function == "strange_of_tests"
    assert call.source is not None and call.source.file.endswith("test_errors.py")


def test_views_in_front_of_a_host_call_are_copied(strange: Primitive) -> None:
    """A host function gets dense arrays."""
    strange.def_reference(lambda x: np.cumsum(x, axis=1))
    h.check(lambda x: strange.bind(op.transpose(x, (1, 0))), ((3, 4), "f32"))


def test_scatter_into_a_long_axis() -> None:
    """Indices are clamped in fp32, which is exact below 2^24."""
    program = h.record(
        lambda x, i, u: op.scatter_add(x, i, u, 0),
        ((1 << 24,), "f32"), ((3,), "i32"), ((3,), "f32"),
    )  # fmt: skip
    with pytest.raises(
        LoweringError,
        match=r"scatter_add into axis 0 of f32\[16777216\] has no kernel \(at test_errors\.py:.*"
        r"Use an axis under 16,777,216",
    ):
        compile_program(program, "trn2")


def test_sizes_decided_at_run_time_have_kernels_or_say_so() -> None:
    from trnx.core import dim

    n = dim("n")
    program = h.record(lambda x: op.pad(x, 0.0, (1,), (2,)), ((n,), "f32"))
    with pytest.raises(LoweringError, match=r"pad of run-time sizes has no kernel .*bucketed"):
        compile_program(program, "trn2")
