"""One table test: every primitive through every rule."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.ops import columns, padding
from tests.ops.table import Call, NumpyEvaluation, all_calls, calls
from trnx.core import Primitive, dtypes, primitives

COLUMNS: dict[str, Callable[[Call], None]] = {
    "types": columns.check_types,
    "cost": columns.check_cost,
    "composite": columns.check_composite,
    "jvp": columns.check_jvp,
    "transpose": columns.check_transpose,
    "vmap": columns.check_vmap,
    "pad": padding.check_pad,
}
DECLARED = [p for p in primitives.values() if p.file.startswith("ops/")]


@pytest.fixture(autouse=True)
def numpy_evaluation() -> Iterator[None]:
    """Evaluate primitives by their references."""
    with NumpyEvaluation():
        yield


@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("primitive", DECLARED, ids=lambda p: p.name)
def test_primitive(primitive: Primitive, column: str) -> None:
    """Every call of the primitive's record satisfies the column."""
    check = COLUMNS[column]
    for call in calls(primitive):
        check(call)


def test_every_primitive_has_calls() -> None:
    """A record without calls would pass every column."""
    assert len(DECLARED) > 50
    assert not [p.name for p in DECLARED if not list(calls(p))]
    assert len(all_calls()) > 1000


def test_floats_are_differentiated() -> None:
    """A primitive that declares derivatives has a call that the derivative columns run."""
    for primitive in DECLARED:
        if primitive.tests.grad_order:
            assert any(columns.differentiable(call) for call in calls(primitive)), primitive.name


_UNARY_COMPOSITES = [
    p
    for p in DECLARED
    if p.composite is not None
    and p.tests.cases[0].shapes == ((),)
    and dtypes.float32 in p.tests.dtypes
    and p.name != "integer_pow"
]


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64, dtypes.bfloat16], ids=str)
@pytest.mark.parametrize("primitive", _UNARY_COMPOSITES, ids=lambda p: p.name)
def test_composite_of_special_values(primitive: Primitive, dtype: object) -> None:
    """Zeros, infinities, NaN, tiny and huge values go through composites as through references."""
    columns.check_special_values(primitive, dtypes.as_dtype(dtype), {})


@pytest.mark.parametrize(
    ("name", "number"),
    [(name, number) for name, calls in padding.WRITTEN.items() for number in range(len(calls))],
)
def test_pad_rule_with_sizes_in_parameters(name: str, number: int) -> None:
    """Pad rules whose parameters hold sizes: offsets, merges and joins move with the true size."""
    padding.check_written(name, number)
