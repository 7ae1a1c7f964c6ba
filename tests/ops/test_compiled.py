"""The compiled columns of the table: host code and simulator against the references."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.ops import compiled
from tests.ops.table import calls
from trnx.core import Primitive, dtypes, primitives
from trnx.runtime.convert import from_host
from trnx.runtime.devices import use_device
from trnx.testing import count_compiles

COLUMNS: dict[str, Callable[[Primitive, str, bool], None]] = {
    "host": compiled.check_host,
    "sim": compiled.check_sim,
}
DECLARED = [
    p
    for p in primitives.values()
    if p.file.startswith("ops/")
    and compiled.lowering_of(p) not in ("host call", "pad or specialise")
]


@pytest.mark.parametrize("target", compiled.DEVICES)
@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("primitive", DECLARED, ids=lambda p: p.name)
def test_primitive(primitive: Primitive, column: str, target: str) -> None:
    """Every case and every dtype of the record."""
    COLUMNS[column](primitive, target, False)


@pytest.mark.nightly
@pytest.mark.parametrize("target", compiled.DEVICES)
@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("primitive", DECLARED, ids=lambda p: p.name)
def test_primitive_every_pair(primitive: Primitive, column: str, target: str) -> None:
    """Every case with every dtype."""
    COLUMNS[column](primitive, target, True)


@pytest.mark.parametrize(
    "primitive", [p for p in DECLARED if p.tests.grad_order], ids=lambda p: p.name
)
def test_derivatives(primitive: Primitive) -> None:
    """jvp and vjp as native f64 code for cpu: finite differences and adjointness."""
    compiled.check_derivatives(primitive, False)


_ELEMENTWISE_FILES = ("ops/elementwise.py", "ops/compare.py", "ops/integer.py")
_ELEMENTWISE = [
    p for p in DECLARED if p.file in _ELEMENTWISE_FILES and dtypes.float32 in p.tests.dtypes
]


@pytest.mark.parametrize(
    ("target", "dtype"),
    [("neuron", dtypes.float32), ("neuron", dtypes.bfloat16), ("cpu", dtypes.float64)],
    ids=str,
)
@pytest.mark.parametrize("primitive", _ELEMENTWISE, ids=lambda p: p.name)
def test_special_values(primitive: Primitive, target: str, dtype: np.dtype) -> None:
    """Zeros, infinities, NaN, tiny and huge operands, in every pair."""
    compiled.check_special(primitive, target, dtype)


@pytest.mark.parametrize("primitive", DECLARED, ids=lambda p: p.name)
def test_second_call_compiles_nothing(primitive: Primitive) -> None:
    """An operation on new arrays of known types runs what the first call compiled."""
    call = compiled.chosen(primitive, "cpu", False)[-1]
    with use_device("cpu"):
        first = primitive.bind_all([from_host(x) for x in call.operands(0)], call.params)
        with count_compiles() as count:
            second = primitive.bind_all([from_host(x) for x in call.operands(1)], call.params)
    assert count() == 0
    for one, two in zip(first, second, strict=True):
        assert one.aval == two.aval
        if one.size > 20 and call.case.shapes and np.asarray(one).dtype.kind == "f":
            assert np.asarray(one).tobytes() != np.asarray(two).tobytes(), "the result is frozen"


def test_most_primitives_are_lowered() -> None:
    """Host calls are the exception; the list above is the rule."""
    assert len(DECLARED) >= 62


def test_choice_covers_cases_and_dtypes() -> None:
    """The short choice leaves no case and no dtype of an array operand out."""
    for primitive in DECLARED:
        full = [c for c in calls(primitive) if compiled.runs_on(c, "cpu")]
        short = compiled.chosen(primitive, "cpu", False)
        assert {c.number for c in short} == {c.number for c in full}, primitive.name
        assert {c.dtypes for c in short} == {c.dtypes for c in full}, primitive.name
