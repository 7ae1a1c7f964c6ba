"""Transforms are tested on the NumPy meaning of primitives: no compiler is involved."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

import trnx.ops  # noqa: F401
from trnx.core import Params, Primitive, aval_of, eval_program, set_evaluator
from trnx.core.dtypes import as_dtype
from trnx.transforms import call_p


class Evaluations(list[str]):
    """Names of the primitives evaluated since the last `clear`."""


@pytest.fixture(autouse=True)
def evaluations() -> Iterator[Evaluations]:
    """Evaluate by the reference of each primitive, and count."""
    seen = Evaluations()

    def evaluator(primitive: Primitive, operands: Sequence[Any], params: Params) -> list[Any]:
        if primitive is call_p:
            return eval_program(params["program"], operands)
        avals = tuple(aval_of(operand) for operand in operands)
        # The results are NumPy arrays here, which become arrays on their way to the user: no work.
        if primitive.name != "broadcast" or avals[0].shape != params["shape"]:
            seen.append(primitive.name)
        # A Python number takes the dtype of its type, not NumPy's 64-bit one.
        arrays = [np.asarray(x).astype(a.dtype) for x, a in zip(operands, avals, strict=True)]
        assert primitive.reference is not None
        result = primitive.reference(*arrays, **params)
        results = result if primitive.multiple_results else (result,)
        expected = primitive.out_avals(avals, params)
        for value, aval in zip(results, expected, strict=True):
            assert as_dtype(np.asarray(value).dtype) == aval.dtype, primitive.name
            assert np.shape(value) == aval.shape, primitive.name
        return [np.asarray(value) for value in results]

    old = set_evaluator(evaluator)
    yield seen
    set_evaluator(old)
