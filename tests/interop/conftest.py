"""64-bit types are on in JAX while these tests run, and as before afterwards."""

from __future__ import annotations

from collections.abc import Iterator

import jax
import pytest


@pytest.fixture(autouse=True)
def wide_jax() -> Iterator[None]:
    """`jax_enable_x64` for one test."""
    before = bool(jax.config.jax_enable_x64)
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", before)
