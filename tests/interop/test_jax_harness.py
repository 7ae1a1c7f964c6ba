"""JAX's harnesses against the committed record: a sample here, everything in the nightly run."""

from __future__ import annotations

import subprocess
import sys
import zlib
from pathlib import Path

import jax
import numpy as np
import pytest

from tests.interop import jax_harness, jax_record

EVERY = 180
"""One of so many harnesses is in the sample."""

# Harness names are known only with 64-bit types on; parameters are made before fixtures run.
_before = bool(jax.config.jax_enable_x64)
jax.config.update("jax_enable_x64", True)
NAMES = tuple(jax_harness.harnesses())
jax.config.update("jax_enable_x64", _before)

SAMPLE = [name for name in NAMES if zlib.crc32(name.encode()) % EVERY == 0]

same_jax = pytest.mark.skipif(
    jax.__version__ != jax_record.JAX_VERSION,
    reason=f"the record was made with jax {jax_record.JAX_VERSION}",
)


@same_jax
@pytest.mark.parametrize("name", SAMPLE)
def test_sample_is_not_worse_than_the_record(name: str) -> None:
    """A harness that passed still passes; one that is recorded otherwise may be better."""
    expected = jax_record.recorded(name)
    if expected == jax_harness.PASSED:
        outcome = jax_harness.run(name)
        assert outcome.status == jax_harness.PASSED, outcome.reason
    else:
        assert expected in (jax_harness.FAILED, jax_harness.OUT, jax_harness.SKIPPED)


@same_jax
@pytest.mark.nightly
def test_whole_sweep_is_the_record(tmp_path: Path) -> None:
    """No harness that passed fails now; `--write` writes down those that got better."""
    state = tmp_path / "sweep.jsonl"
    subprocess.run(
        [sys.executable, "-m", "tests.interop.sweep", "--state", str(state), "--workers", "2"],
        check=True,
        cwd=jax_record.ROOT,
    )
    from tests.interop.sweep import read

    found = {name: status for name, (status, _) in read(state).items()}
    assert len(found) == len(NAMES)
    passed = [n for n in NAMES if jax_record.recorded(n) == jax_harness.PASSED]
    worse = [n for n in passed if found[n] != jax_harness.PASSED]
    assert not worse, f"{len(worse)} got worse, such as {worse[:5]}"


def test_page_and_target() -> None:
    """docs/jax_support.md is what the record gives, and at least 90 % of those in scope pass."""
    groups = jax_record.read()
    assert jax_record.PAGE.read_text(encoding="utf-8") == jax_record.page(groups)
    passed, failed = jax_record.counts(groups)
    assert passed >= 0.9 * (passed + failed)


@same_jax
def test_record_covers_every_harness() -> None:
    """Counts per group are those of JAX's list."""
    groups = jax_record.read()
    total = sum(jax_record.size(entry) for entry in groups.values())
    assert total == len(NAMES)


def test_comparison_sees_differences() -> None:
    """The judge itself: values, NaN and integers."""
    one = np.array([1.0, np.nan], np.float32)
    jax_harness.close(one, one, 1e-6)
    with pytest.raises(AssertionError, match="worst"):
        jax_harness.close(one, np.array([1.0, 2.0], np.float32), 1e-6)
    with pytest.raises(AssertionError, match="1 of 2 differ"):
        jax_harness.close(np.array([1, 2]), np.array([1, 3]), 0)
