"""Fixtures for the core tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import trnx.ops  # noqa: F401
from trnx.core import primitives


@pytest.fixture
def scratch_primitives() -> Iterator[None]:
    """Primitives that a test declares are forgotten after it."""
    before = dict(primitives)
    yield
    primitives.clear()
    primitives.update(before)
