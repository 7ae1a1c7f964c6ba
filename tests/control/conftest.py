"""Control flow is tested on the NumPy meaning of primitives: the rules alone, no compiler."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

os.environ.setdefault("JAX_PLATFORMS", "cpu")

from tests.ops.table import NumpyEvaluation


@pytest.fixture(autouse=True)
def by_references() -> Iterator[None]:
    """Evaluate primitives by their NumPy references, with run-time arrays as values."""
    with NumpyEvaluation(arrays=True):
        yield
