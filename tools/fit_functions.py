"""Fit the polynomial coefficients of ``compiler/tile/functions.py``; needs mpmath.

Each fit is a weighted least-squares problem on Chebyshev nodes, with Lawson's reweighting until the
error is level (a minimax fit), solved in multiple precision and rounded to fp32. Run
``python tools/fit_functions.py`` and compare the printed tuples with the tables.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from mpmath import mp, mpf

mp.dps = 40
Real = Callable[[mpf], mpf]


@dataclass(frozen=True, slots=True)
class Fit:
    """``target(x) ~ Σ c[k]·argument(x)^k``; the error that counts is ``weight(x)·difference``."""

    name: str
    low: float
    high: float
    degree: int
    target: Real
    weight: Real
    argument: Real = lambda x: x


def solve(fit: Fit, nodes: int = 200) -> tuple[np.ndarray, float]:
    """Coefficients (lowest first, fp32) and the largest weighted error of the fp32 polynomial.

    Coefficients are rounded one by one from the lowest; each time the others are fitted anew, so
    that they make up for the rounding.
    """
    angles = (np.arange(nodes) + 0.5) * np.pi / nodes
    middle, half = 0.5 * (fit.low + fit.high), 0.5 * (fit.high - fit.low)
    xs = [mpf(v) for v in middle - half * np.cos(angles)]
    args = [fit.argument(x) for x in xs]
    targets = [fit.target(x) for x in xs]
    weights = [fit.weight(x) for x in xs]
    powers = range(fit.degree + 1)
    basis = np.array(
        [[float(w * a**k) for k in powers] for a, w in zip(args, weights, strict=True)],
        np.longdouble,
    )
    rest = np.array([float(w * t) for w, t in zip(weights, targets, strict=True)], np.longdouble)
    rounded: list[np.float32] = []
    for k in powers:
        lowest = np.float32(_minimax(basis[:, k:], rest)[0])
        rounded.append(lowest)
        rest = rest - basis[:, k] * np.longdouble(lowest)
    table = np.array(rounded, np.float32)
    return table, _largest_error(table, args, targets, weights)


def _minimax(basis: np.ndarray, target: np.ndarray, rounds: int = 40) -> np.ndarray:
    """Least squares, reweighted by the error until it is level (Lawson)."""
    weights = np.ones(len(target))
    best: tuple[float, np.ndarray] | None = None
    for _ in range(rounds):
        root = np.sqrt(weights)
        coefficients, *_ = np.linalg.lstsq(
            (basis * root[:, None]).astype(np.float64),
            (target * root).astype(np.float64),
            rcond=None,
        )
        error = np.abs(basis @ coefficients - target).astype(np.float64)
        if best is None or error.max() < best[0]:
            best = (float(error.max()), coefficients)
        weights *= error
        weights /= weights.sum()
    assert best is not None
    return best[1]


def _largest_error(
    coefficients: np.ndarray, args: Sequence[mpf], targets: Sequence[mpf], weights: Sequence[mpf]
) -> float:
    worst = mpf(0)
    for a, t, w in zip(args, targets, weights, strict=True):
        value = mpf(0)
        for c in coefficients[::-1]:
            value = value * a + mpf(float(c))
        worst = max(worst, abs(w * (value - t)))
    return float(worst)


def _mills(t: mpf) -> mpf:
    """``Phi(-t)·exp(t²/2)``."""
    return mp.erfc(t / mp.sqrt(2)) * mp.exp(t * t / 2) / 2


MILLS_SLOPE = mpf(float(np.float32(0.45)))


def _square(x: mpf) -> mpf:
    return x * x


def _u(t: mpf) -> mpf:
    return 1 / (1 + MILLS_SLOPE * t)


FITS = (
    # exp(r) = 1 + r + r²·q(r)
    Fit("EXP", -0.3467, 0.3467, 4, lambda r: (mp.expm1(r) - r) / r**2, lambda r: r * r / mp.exp(r)),
    # log(1 + f) = f - f²/2 + f³·p(f)
    Fit(
        "LOG",
        -0.2930,
        0.4143,
        8,
        lambda f: (mp.log1p(f) - f + f * f / 2) / f**3,
        lambda f: abs(f**3 / mp.log1p(f)),
    ),
    # log(1 + e) = q + q³·p(q²), q = 2e / (2 + e)
    Fit(
        "LOG1P",
        1e-3,
        2 / 3,
        4,
        lambda q: (2 * mp.atanh(q / 2) - q) / q**3,
        lambda q: q**3 / (2 * mp.atanh(q / 2)),
        _square,
    ),
    # 2^r = 1 + r·p(r); the error may be four times that of the result it goes into
    Fit("EXP2", -0.5, 0.5, 4, lambda r: (2**r - 1) / r, lambda r: abs(r) / 2**r),
    # erf(x) = x + x·p(x²)
    Fit(
        "ERF_SMALL",
        1e-4,
        0.875,
        5,
        lambda x: mp.erf(x) / x - 1,
        lambda x: x / mp.erf(x),
        _square,
    ),
    # erf(x) = 1 - 2^g(x)
    Fit(
        "ERF_LARGE",
        0.875,
        4.0,
        6,
        lambda x: mp.log(mp.erfc(x)) / mp.log(2),
        lambda x: mp.erfc(x) * mp.log(2) / mp.erf(x),
    ),
    # Phi(-t) = exp(-t²/2)·u·p(2u - 1), u = 1 / (1 + slope·t)
    Fit(
        "MILLS",
        0.0,
        14.6,
        10,
        lambda t: _mills(t) / _u(t),
        lambda t: _u(t) / _mills(t),
        lambda t: 2 * _u(t) - 1,
    ),
    # sin(r) = r + r³·p(r²)
    Fit(
        "SIN",
        1e-3,
        1.5709,
        4,
        lambda r: (mp.sin(r) - r) / r**3,
        lambda r: r**3 / mp.sin(r),
        _square,
    ),
    # arctan(x) = x + x³·p(x²)
    Fit(
        "ARCTAN",
        1e-3,
        1.0,
        8,
        lambda x: (mp.atan(x) - x) / x**3,
        lambda x: x**3 / mp.atan(x),
        _square,
    ),
)


def main() -> None:
    """Print every table."""
    for item in FITS:
        table, error = solve(item)
        print(f"{item.name} = (  # weighted error {error / 2**-24:.3f} half ulp of 1")
        for c in table:
            print(f"    {float(c)!r},")
        print(")")


if __name__ == "__main__":
    main()
