"""Random numbers equal those of jax.random for the same key."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

import trnx
import trnx.numpy as tnp
from trnx.core import DTypeError, ShapeError

pytestmark = pytest.mark.usefixtures("by_references")

SEEDS = [0, 42, -1, 2**31 - 1]
SHAPES: list[Any] = [(), (2, 3, 4)]


def keys(seed: int) -> tuple[Any, Any]:
    """The same key in both libraries."""
    return trnx.random.key(seed), jax.random.PRNGKey(seed)


def test_jax_draws_by_position() -> None:
    """What the comparison relies on: jax's default layout of counters, the one copied here."""
    assert jax.config.jax_threefry_partitionable


@pytest.mark.parametrize("seed", SEEDS)
def test_keys(seed: int) -> None:
    """key, split and fold_in."""
    ours, theirs = keys(seed)
    np.testing.assert_array_equal(np.asarray(ours), np.asarray(theirs))
    for num in (2, 5, (2, 3)):
        got, want = trnx.random.split(ours, num), jax.random.split(theirs, num)
        np.testing.assert_array_equal(np.asarray(got), np.asarray(want))
    for data in (0, 7, 2**31 + 5):
        got, want = trnx.random.fold_in(ours, data), jax.random.fold_in(theirs, np.uint32(data))
        np.testing.assert_array_equal(np.asarray(got), np.asarray(want))
    traced = trnx.random.key(tnp.asarray(np.int32(seed)))
    np.testing.assert_array_equal(np.asarray(traced), np.asarray(theirs))


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_bits(shape: Any, dtype: str) -> None:
    """Random bits of each width."""
    ours, theirs = keys(3)
    got = trnx.random.bits(ours, shape, dtype)
    np.testing.assert_array_equal(
        np.asarray(got), np.asarray(jax.random.bits(theirs, shape, dtype))
    )


def test_bits_64() -> None:
    """64-bit words and f64 numbers, which jax draws only with its 64-bit switch."""
    ours, theirs = keys(3)
    with jax.enable_x64(True):
        want = np.asarray(jax.random.bits(theirs, (6,), "uint64"))
        floats = np.asarray(jax.random.uniform(theirs, (6,), "float64"))
    np.testing.assert_array_equal(np.asarray(trnx.random.bits(ours, (6,), "uint64")), want)
    np.testing.assert_array_equal(np.asarray(trnx.random.uniform(ours, (6,), "float64")), floats)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_uniform(shape: Any, dtype: str) -> None:
    """Uniform numbers in [0, 1) are equal to the last bit."""
    ours, theirs = keys(11)
    got = np.asarray(trnx.random.uniform(ours, shape, dtype))
    want = np.asarray(jax.random.uniform(theirs, shape, dtype))
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got, want)


def test_distributions() -> None:
    """Distributions made of uniform numbers; normal within the error of the two erf_inv."""
    ours, theirs = keys(5)
    logits = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
    pairs: list[tuple[Any, Any, float]] = [
        (
            trnx.random.uniform(ours, (64,), minval=-2.0, maxval=3.0),
            jax.random.uniform(theirs, (64,), minval=-2.0, maxval=3.0),
            3e-7,
        ),
        (trnx.random.normal(ours, (4096,)), jax.random.normal(theirs, (4096,)), 4e-6),
        (trnx.random.exponential(ours, (64,)), jax.random.exponential(theirs, (64,)), 1e-6),
        (trnx.random.gumbel(ours, (64,)), jax.random.gumbel(theirs, (64,)), 2e-5),
        (trnx.random.bernoulli(ours, 0.3, (64,)), jax.random.bernoulli(theirs, 0.3, (64,)), 0),
        (trnx.random.randint(ours, (64,), -5, 9), jax.random.randint(theirs, (64,), -5, 9), 0),
        (trnx.random.categorical(ours, logits), jax.random.categorical(theirs, logits), 0),
    ]
    for got, want, bound in pairs:
        got, want = np.asarray(got), np.asarray(want)
        assert got.shape == want.shape and got.dtype == want.dtype
        np.testing.assert_allclose(got, want, rtol=bound, atol=bound)


@pytest.mark.parametrize("low_high", [(0, 1), (-128, 128), (0, 100), (5, 6)], ids=str)
def test_randint_of_narrow_types(low_high: tuple[int, int]) -> None:
    """Ranges up to the whole type, as jax draws them."""
    ours, theirs = keys(8)
    got = np.asarray(trnx.random.randint(ours, (200,), *low_high, dtype="int8"))
    want = np.asarray(jax.random.randint(theirs, (200,), *low_high, dtype="int8"))
    np.testing.assert_array_equal(got, want)


def test_randint_of_an_empty_range() -> None:
    """No number lies in it: an error, where jax gives one outside."""
    with pytest.raises(ValueError, match=r"randint of \[5, 5\), which is empty"):
        trnx.random.randint(keys(8)[0], (3,), 5, 5)


def test_part_of_a_draw_depends_on_its_position_only() -> None:
    """The first numbers of a longer draw are those of a shorter one."""
    key = trnx.random.key(1)
    long, short = trnx.random.uniform(key, (100,)), trnx.random.uniform(key, (10,))
    np.testing.assert_array_equal(np.asarray(long)[:10], np.asarray(short))


def test_vmap_over_keys() -> None:
    """Each key of a batch draws what it draws alone."""
    batch = trnx.random.split(trnx.random.key(4), 3)
    got = np.asarray(trnx.vmap(lambda key: trnx.random.normal(key, (5,)))(batch))
    want = [np.asarray(trnx.random.normal(batch[i], (5,))) for i in range(3)]
    np.testing.assert_array_equal(got, np.stack(want))


def test_errors() -> None:
    """Wrong keys, dtypes and sizes."""
    with pytest.raises(DTypeError, match=r"u32\[2\], not f32\[2\].*random.key"):
        trnx.random.uniform(tnp.ones(2), (3,))
    with pytest.raises(DTypeError, match=r"random\.normal of i32"):
        trnx.random.normal(trnx.random.key(0), (3,), np.int32)
    with pytest.raises(OverflowError, match="64 bits"):
        trnx.random.key(2**64)
    with pytest.raises(ShapeError, match=r"2\*\*32 per call"):
        trnx.random.bits(trnx.random.key(0), (2**20, 2**13))
