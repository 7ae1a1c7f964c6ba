"""Transforms against JAX: the same function, once in trnx and once in JAX, under both libraries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

import trnx
from trnx.interop.jax import from_jax

RNG = np.random.default_rng(3)
X = RNG.normal(size=(4,))
M = RNG.normal(size=(4, 4))


def layer(lib: Any, x: Any) -> Any:
    return lib.numpy.tanh(lib.numpy.matmul(M, x)) * x


def loss(lib: Any, x: Any) -> Any:
    return (layer(lib, x) ** 2).sum() + lib.numpy.exp(x[0] * x[1])


def scanned(lib: Any, x: Any) -> Any:
    def step(carry: Any, item: Any) -> Any:
        carry = lib.numpy.sin(carry) * item + carry
        return carry, carry**2

    carry, ys = lib.lax.scan(step, x * 0.5, lib.numpy.stack([x, x * 2, x * x]))
    return carry.sum() + ys.sum()


def looped(lib: Any, x: Any) -> Any:
    def body(state: Any) -> Any:
        count, value = state
        return count + 1, lib.numpy.cos(value) + value * x

    return lib.lax.while_loop(lambda s: s[0] < 4, body, (0, x))[1].sum()


def branched(lib: Any, x: Any) -> Any:
    return lib.lax.cond(x[0] > 0, lambda v: (v**3).sum(), lambda v: lib.numpy.sin(v).sum(), x)


def remat(lib: Any, x: Any) -> Any:
    return lib.checkpoint(lambda v: (lib.numpy.sin(lib.numpy.sin(v)) * v).sum())(x)


Function = Callable[..., Any]
TRANSFORMS: dict[str, tuple[Function, Function]] = {
    "grad": (lambda lib, f: lib.grad(f), loss),
    "jacfwd": (lambda lib, f: lib.jacfwd(f), layer),
    "jacrev": (lambda lib, f: lib.jacrev(f), layer),
    "hessian": (lambda lib, f: lib.hessian(f), loss),
    "third": (lambda lib, f: lib.jacfwd(lib.jacrev(lib.grad(f))), loss),
    "grad of grad norm": (lambda lib, f: lib.grad(lambda x: (lib.grad(f)(x) ** 2).sum()), loss),
    "reverse over scan": (lambda lib, f: lib.grad(f), scanned),
    "forward over scan": (lambda lib, f: lib.jacfwd(f), scanned),
    "hessian of scan": (lambda lib, f: lib.hessian(f), scanned),
    "forward over while": (lambda lib, f: lib.jacfwd(f), looped),
    "forward twice over while": (lambda lib, f: lib.jacfwd(lib.jacfwd(f)), looped),
    "reverse over cond": (lambda lib, f: lib.grad(f), branched),
    "hessian of cond": (lambda lib, f: lib.hessian(f), branched),
    "remat": (lambda lib, f: lib.grad(f), remat),
    "hessian of remat": (lambda lib, f: lib.hessian(f), remat),
    "jvp": (lambda lib, f: lambda x: lib.jvp(f, (x,), (x * 2,)), layer),
    "vjp": (lambda lib, f: lambda x: lib.vjp(f, x)[1](x), layer),
    "linearize": (lambda lib, f: lambda x: lib.linearize(f, x)[1](x * 3), layer),
    "vmap of grad": (
        lambda lib, f: lambda x: lib.vmap(lib.grad(f))(lib.numpy.stack([x, -x])),
        loss,
    ),
    "vmap of cond": (lambda lib, f: lambda x: lib.vmap(f)(lib.numpy.stack([x, -x])), branched),
    "vmap of scan": (lambda lib, f: lambda x: lib.vmap(f)(lib.numpy.stack([x, -x])), scanned),
    "vmap of while": (lambda lib, f: lambda x: lib.vmap(f)(lib.numpy.stack([x, -x])), looped),
    "grad of vmap": (
        lambda lib, f: lib.grad(
            lambda x: lib.vmap(f, in_axes=1)(lib.numpy.stack([x, x * 2], 1)).sum()
        ),
        loss,
    ),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transform(name: str) -> None:
    """f64 on device cpu: the results of JAX to rounding."""
    transform, function = TRANSFORMS[name]
    want = transform(jax, lambda x: function(jax, x))(jax.numpy.asarray(X))
    with trnx.use_device("cpu"):
        got = trnx.jit(transform(trnx, lambda x: function(trnx, x)))(X)
    for mine, theirs in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(np.asarray(mine), np.asarray(theirs), 1e-10, 1e-11)


@pytest.mark.parametrize("in_axes", [0, 1, -1, (0, None), ({"a": 1, "b": None}, 0)], ids=str)
@pytest.mark.parametrize("out_axes", [0, -1, (1, 0)], ids=str)
def test_vmap_axes(in_axes: Any, out_axes: Any) -> None:
    """in_axes and out_axes: numbers, negative ones, tuples, trees, None."""
    x, y = RNG.normal(size=(3, 3, 2)), RNG.normal(size=(3, 3, 2))
    tree = isinstance(in_axes, tuple) and isinstance(in_axes[0], dict)
    if in_axes == -1:
        x, y = np.moveaxis(x, 0, -1), np.moveaxis(y, 0, -1)
    one: Any = {"a": x, "b": y[0, :, :]} if tree else x
    other = y if in_axes != (0, None) else y[0]

    def function(lib: Any, p: Any, q: Any) -> Any:
        p = p["a"] * p["b"] if tree else p
        return lib.numpy.sin(p) * q, q + 1

    want = jax.vmap(lambda p, q: function(jax, p, q), in_axes, out_axes)(one, other)
    with trnx.use_device("cpu"):
        got = trnx.vmap(lambda p, q: function(trnx, p, q), in_axes, out_axes)(one, other)
    for mine, theirs in zip(got, want, strict=True):
        np.testing.assert_allclose(np.asarray(mine), np.asarray(theirs), 1e-12)


def _positive(a: Any, lib: Any) -> Any:
    return lib.numpy.matmul(a, a.T) + 4 * lib.numpy.eye(4)


A = RNG.normal(size=(4, 4))
B = RNG.normal(size=(4, 3))
LINALG: dict[str, Function] = {
    "cholesky": lambda lib, a: lib.numpy.linalg.cholesky(_positive(a, lib)),
    "solve": lambda lib, a: lib.numpy.linalg.solve(a, B),
    "inv": lambda lib, a: lib.numpy.linalg.inv(a),
    "det": lambda lib, a: lib.numpy.linalg.det(a),
    "slogdet": lambda lib, a: lib.numpy.linalg.slogdet(a)[1],
    "qr": lambda lib, a: lib.numpy.linalg.qr(a[:, :3])[1],
    "svd": lambda lib, a: lib.numpy.linalg.svd(a[:3], full_matrices=False)[1],
    "svd vectors": lambda lib, a: _projector(lib, lib.numpy.linalg.svd(a, full_matrices=False)[0]),
    "eigh": lambda lib, a: lib.numpy.linalg.eigh(_positive(a, lib))[0],
    "eigh vectors": lambda lib, a: _projector(lib, lib.numpy.linalg.eigh(_positive(a, lib))[1]),
    "pinv": lambda lib, a: lib.numpy.linalg.pinv(a[:, :3]),
    "lstsq": lambda lib, a: lib.numpy.linalg.lstsq(a[:, :3], B)[0],
    "nuclear norm": lambda lib, a: lib.numpy.linalg.norm(a, "nuc"),
    "power": lambda lib, a: lib.numpy.linalg.matrix_power(a, 3),
    "fft": lambda lib, a: lib.numpy.abs(lib.numpy.fft.fft(a, axis=0)),
    "rfft and back": lambda lib, a: lib.numpy.fft.irfft(lib.numpy.fft.rfft(a)[:, :2] ** 2, 5),
    "complex": lambda lib, a: lib.numpy.abs(lib.numpy.exp(a * (1 + 2j)) / (a - 1j)),
}


def _projector(lib: Any, vectors: Any) -> Any:
    """The projection on the first vector, which has no sign to choose."""
    first = vectors[:, :1]
    return lib.numpy.matmul(first, first.T)


@pytest.mark.parametrize("name", LINALG)
def test_linear_algebra_derivatives(name: str) -> None:
    """Values, forward and reverse Jacobians of factorisations and transforms."""
    function = LINALG[name]
    a = jax.numpy.asarray(A)
    with trnx.use_device("cpu"):
        mine = trnx.jit(lambda x: function(trnx, x))(A)
        forward = trnx.jit(trnx.jacfwd(lambda x: function(trnx, x)))(A)
        reverse = trnx.jit(trnx.jacrev(lambda x: function(trnx, x)))(A)
    want = jax.jacfwd(lambda x: function(jax, x))(a)
    sign = 1.0
    if name == "qr":  # rows of R have a sign of their own
        sign = np.sign(np.diag(np.asarray(mine)) * np.diag(np.asarray(function(jax, a))))[:, None]
        mine, forward, reverse = (
            np.asarray(x) * sign.reshape(sign.shape + (1,) * (np.ndim(x) - 2))
            for x in (mine, forward, reverse)
        )
    np.testing.assert_allclose(np.asarray(mine), np.asarray(function(jax, a)), 1e-9, 1e-10)
    np.testing.assert_allclose(np.asarray(forward), np.asarray(want), 1e-7, 1e-8)
    np.testing.assert_allclose(np.asarray(reverse), np.asarray(want), 1e-7, 1e-8)


def test_complex_derivatives_are_those_of_jax() -> None:
    """Holomorphic functions and real functions of complex arguments, by JAX's convention."""
    z = RNG.normal(size=(3,)) + 1j * RNG.normal(size=(3,))

    def function(v: Any) -> Any:
        return jax.numpy.abs(jax.numpy.exp(v) * v + jax.numpy.log(v) / jax.numpy.sqrt(v)).sum()

    with trnx.use_device("cpu"):
        mine = trnx.grad(from_jax(function))(z)
    np.testing.assert_allclose(np.asarray(mine), np.asarray(jax.grad(function)(z)), 1e-10)
