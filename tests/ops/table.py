"""The table of primitives: which calls are tested, their operands, and comparison by dtype.

A *column* is a function ``check(call)`` that raises AssertionError; test_primitives.py runs every
column over every call. Adding a target or a transform is adding one such function.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import trnx.ops  # noqa: F401  (declares the primitives)
from trnx.core import Aval, OpCase, Params, Primitive, aval_of, dtypes, primitives
from trnx.core.tracing import set_evaluator
from trnx.runtime.array import fill_from
from trnx.runtime.devices import default_device

NumpyArray = np.ndarray[Any, Any]

# What a test-wide default draws when a case gives no range.
_FLOAT_RANGE = (-3.0, 3.0)
_INTEGER_RANGE = (-100, 100)


@dataclass(frozen=True)
class Call:
    """One case of one primitive with the dtypes of its operands filled in."""

    primitive: Primitive
    case: OpCase
    dtypes: tuple[np.dtype[Any], ...]
    number: int

    @property
    def params(self) -> Params:
        """Parameters of the call."""
        return Params(self.case.params)

    @property
    def avals(self) -> tuple[Aval, ...]:
        """Types of the operands."""
        return tuple(map(Aval, self.case.shapes, self.dtypes))

    @property
    def name(self) -> str:
        """A readable test id."""
        parts = [*map(str, self.avals)]
        parts += [f"{k}={_short(v)}" for k, v in self.case.params.items()]
        return f"{self.primitive.name}({' '.join(parts)})"

    def operands(self, seed: int = 0) -> list[NumpyArray]:
        """The operands, the same in every process."""
        rng = np.random.default_rng(zlib.crc32(f"{self.name} {seed}".encode()))
        ranges = self.case.ranges or (None,) * len(self.case.shapes)
        return [
            draw(rng, shape, dtype, limits)
            for shape, dtype, limits in zip(self.case.shapes, self.dtypes, ranges, strict=True)
        ]

    def compare(self, actual: Any, expected: Any, what: str) -> None:
        """Assert that a result equals the reference within the bounds of the record."""
        record = self.primitive.tests
        name = dtypes.short_name(np.asarray(expected).dtype)
        bound = record.tolerance.get(name, 0.0)
        assert_close(actual, expected, bound, f"{what} of {self.name}", record.floor)


def _short(value: Any) -> str:
    return dtypes.short_name(value) if isinstance(value, np.dtype) else str(value)


def draw(
    rng: np.random.Generator,
    shape: Sequence[int],
    dtype: np.dtype[Any],
    limits: tuple[float, float] | None,
) -> NumpyArray:
    """Random values of a dtype within limits; integers without limits include the extremes."""
    if dtype == dtypes.bool_:
        return rng.random(shape) < 0.5
    if dtypes.is_integer(dtype):
        lowest, highest = dtypes.integer_range(dtype)
        low, high = _INTEGER_RANGE if limits is None else (int(limits[0]), int(limits[1]))
        values = rng.integers(max(low, lowest), min(high, highest), shape, endpoint=True)
        values = np.asarray(values).astype(dtype)
        if limits is None:
            edges = np.array([lowest, lowest + 1, highest, highest - 1, 0], dtype)
            values = np.where(rng.random(shape) < 0.25, rng.choice(edges, shape), values)
        return np.asarray(values, dtype)
    low, high = _FLOAT_RANGE if limits is None else limits
    values = rng.uniform(low, high, shape)
    if dtypes.is_complex(dtype):
        values = values + 1j * rng.uniform(low, high, shape)
    return np.asarray(values).astype(dtype)


def calls(primitive: Primitive) -> Iterator[Call]:
    """Every call of a primitive's record."""
    record = primitive.tests
    for number, case in enumerate(record.cases):
        if case.dtypes is not None:
            yield Call(primitive, case, tuple(map(dtypes.as_dtype, case.dtypes)), number)
        elif not case.shapes:
            yield Call(primitive, case, (), number)
        else:
            for dtype in record.dtypes:
                yield Call(primitive, case, (dtype,) * len(case.shapes), number)


def all_calls() -> list[Call]:
    """Every call of every primitive that is declared in ops/."""
    return [c for p in primitives.values() if p.file.startswith("ops/") for c in calls(p)]


def reference(
    primitive: Primitive, operands: Sequence[Any], params: Mapping[str, Any]
) -> list[Any]:
    """Outputs by the NumPy meaning of a primitive; operands may be any array-likes."""
    arrays = [np.asarray(x, dtype=aval_of(x).dtype) for x in operands]
    result = primitive.rule("reference")(*arrays, **params)
    results = list(result) if primitive.multiple_results else [result]
    return [np.asarray(value) for value in results]


class NumpyEvaluation:
    """A context in which primitives are evaluated by their NumPy references.

    Args:
        arrays: results are run-time arrays, with operators and weak types; else NumPy arrays.
    """

    def __init__(self, arrays: bool = False) -> None:
        self._arrays = arrays

    def __enter__(self) -> NumpyEvaluation:
        self._old = set_evaluator(self._evaluate)
        return self

    def __exit__(self, *exc: object) -> None:
        set_evaluator(self._old)

    def _evaluate(self, primitive: Primitive, operands: Sequence[Any], params: Params) -> list[Any]:
        avals = primitive.out_avals(tuple(map(aval_of, operands)), params)
        values = reference(primitive, operands, params)
        for aval, value in zip(avals, values, strict=True):
            assert aval.shape == value.shape and aval.dtype == value.dtype, primitive.name
        if not self._arrays:
            return values
        return [
            fill_from(value, aval, default_device())
            for aval, value in zip(avals, values, strict=True)
        ]


def assert_close(
    actual: Any, expected: Any, bound: float, what: str = "", floor: float = 1.0
) -> None:
    """Same shape, dtype and values: equal for bound 0, else within `bound`, relative to the value.

    Values below `floor` are compared absolutely. NaN equals NaN; infinities must be equal.
    """
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert actual.shape == expected.shape, (what, actual.shape, expected.shape)
    assert actual.dtype == expected.dtype, (what, actual.dtype, expected.dtype)
    if expected.size == 0:
        return
    if bound == 0.0:
        same = (actual == expected) | ((actual != actual) & (expected != expected))
        assert same.all(), f"{what}: {actual[~same][:4]} is not {expected[~same][:4]}"
        return
    kind = complex if dtypes.is_complex(dtypes.as_dtype(expected.dtype)) else float
    a, e = actual.astype(kind), expected.astype(kind)
    finite = np.isfinite(e)
    assert np.array_equal(np.isnan(a), np.isnan(e)), f"{what}: NaN in other places"
    special = ~finite & ~np.isnan(e)
    assert np.array_equal(a[special], e[special]), f"{what}: infinities differ"
    smallest = 1e-38 if floor == 0.0 else floor
    scale = np.maximum(np.abs(e[finite]), smallest)
    error = np.abs(a[finite] - e[finite]) / scale
    assert error.size == 0 or error.max() <= bound, f"{what}: error {error.max():.3g} > {bound:.3g}"
