"""Every transcendental is within 2 ulp of the exact value for all kinds of fp32 input."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from mpmath import mp

from tests.host.cpus import CPUS
from tests.host.native import run_native
from tests.sim.programs import compile_program
from trnx.compiler.tile.build import KernelBuilder
from trnx.compiler.tile.functions import FUNCTIONS
from trnx.compiler.tile.functions_numpy import apply
from trnx.core.dtypes import float32

Reference = Callable[[np.ndarray], np.ndarray]


def _erfc(x: np.ndarray) -> np.ndarray:
    return np.array([float(mp.erfc(mp.mpf(float(v)))) for v in x.ravel()]).reshape(x.shape)


def _erf(x: np.ndarray) -> np.ndarray:
    return np.array([float(mp.erf(mp.mpf(float(v)))) for v in x.ravel()]).reshape(x.shape)


def _sin(x: np.ndarray) -> np.ndarray:
    return np.array([float(mp.sin(mp.mpf(float(v)))) if np.isfinite(v) else np.nan for v in x])


def _sigmoid(x: np.ndarray) -> np.ndarray:
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1.0, e) / (1.0 + e)


def _times(x: np.ndarray, factor: np.ndarray) -> np.ndarray:
    # The limit at -inf is 0, which the product of -inf and 0 is not.
    return np.where(x == -np.inf, 0.0, x * factor)


def _gelu_tanh(x: np.ndarray) -> np.ndarray:
    z = np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)
    return _times(x, _sigmoid(2 * z))


REFERENCES: dict[str, Reference] = {
    "exp": np.exp,
    "log": np.log,
    "tanh": np.tanh,
    "sigmoid": _sigmoid,
    "erf": _erf,
    "gelu": lambda x: _times(x, 0.5 * _erfc(-x / np.sqrt(2))),
    "gelu_apprx_tanh": _gelu_tanh,
    "silu": lambda x: _times(x, _sigmoid(x)),
    "softplus": lambda x: np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))),
    "sin": _sin,
    "arctan": np.arctan,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "reciprocal": lambda x: 1 / x,
}


def ulp_error(got: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """|got - exact| in units in the last place of fp32 at ``exact``; inf where kinds differ."""
    rounded = exact.astype(np.float32)
    exponent = np.floor(np.log2(np.maximum(np.abs(exact), 2.0**-126)))
    unit = 2.0 ** (exponent - 23)
    error = np.abs(got.astype(np.float64) - exact) / unit
    same = (got == rounded) | (np.isnan(got) & np.isnan(rounded))
    error = np.where(same, np.fmin(error, 0.5), error)
    return np.where(np.isnan(error), np.inf, error)


def _inputs(name: str, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    few = name in ("erf", "gelu", "sin")
    count = 3_000 if few else 60_000
    bits = rng.integers(0, 2**32, count, dtype=np.uint32).view(np.float32)
    near = rng.uniform(-20, 20, count)
    middle = rng.uniform(-110, 110, count)
    small = rng.standard_normal(count)
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 3.4e38, -3.4e38, 1.0, -1.0]
    special += [1.1754944e-38, 88.72, 88.73, -87.4, -103.9, -104.1, 16.0, 131072.0, 131073.0]
    parts = (near, middle, small, np.array(special))
    return np.concatenate([bits, *(p.astype(np.float32) for p in parts)])


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_within_two_ulp(name: str) -> None:
    """Random bit patterns, the usual ranges and the special values."""
    x = _inputs(name, seed=7)
    with np.errstate(all="ignore"):
        exact = REFERENCES[name](x.astype(np.float64))
        error = ulp_error(apply(name, x), exact)
    worst = int(np.argmax(error))
    assert error[worst] <= 2.0, (name, x[worst], error[worst], apply(name, x[worst : worst + 1]))


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_native_code_within_two_ulp(name: str, cpu: str) -> None:
    """The same as LLVM code on every class of CPU, whole vectors, tails and single elements."""
    x = _inputs(name, seed=9)[-3000:]
    x = np.concatenate([x, x[:3]]).reshape(1, -1)

    def write(b: KernelBuilder) -> None:
        source = b.param("x", x.shape, float32, "in")
        target = b.param("y", x.shape, float32, "out")
        tile, result = b.sbuf(x.shape, float32), b.sbuf(x.shape, float32)
        b.dma_copy(tile, source)
        b.activation(result, tile, op=name)
        b.dma_copy(target, result)

    got = run_native(compile_program(write), [x], cpu=CPUS[cpu])[0][0]
    with np.errstate(all="ignore"):
        error = ulp_error(got, REFERENCES[name](x[0].astype(np.float64)))
    worst = int(np.argmax(error))
    assert error[worst] <= 2.0, (x[0, worst], error[worst], got[worst])


def test_every_function_has_a_reference() -> None:
    """A new function comes with its reference."""
    assert set(REFERENCES) == set(FUNCTIONS)


def test_sin_near_multiples_of_pi() -> None:
    """The reduction keeps relative precision where sine is almost zero."""
    k = np.arange(1, 40_000, 7)
    x = (k * np.pi).astype(np.float32)
    assert ulp_error(apply("sin", x), _sin(x)).max() <= 2.0
