"""Array functions of symbolic sizes: traced once, padded, exact for every true size."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import trnx
import trnx.numpy as tnp
from tests.ops.padding import garbage
from trnx.core import DimError, dim, eval_program, evaluate, make_aval
from trnx.core.tracing import trace_program
from trnx.transforms import grad, pad_program

pytestmark = pytest.mark.usefixtures("by_references")

N = dim("n", min=3, max=16)
BUCKET = 16
SIZES = (3, 7, 16)


def _loss(x: Any, labels: Any) -> Any:
    return trnx.nn.cross_entropy(x, labels)


# name -> (function, types of its arguments); integer arguments are classes below 4
CASES: dict[str, tuple[Callable[..., Any], list[tuple[tuple[Any, ...], str]]]] = {
    "mean": (lambda x: tnp.mean(x), [((N, 4), "f32")]),
    "mean_axis": (lambda x: x.mean(0), [((N, 4), "f32")]),
    "mean_bf16": (lambda x: x.mean(0), [((N, 4), "bf16")]),
    "var": (lambda x: tnp.var(x, axis=0, ddof=1), [((N, 4), "f32")]),
    "divide_by_size": (lambda x: x.sum() / x.shape[0], [((N,), "f32")]),
    "size_in_arithmetic": (lambda x: x * x.shape[0] + 2 * x.size, [((N,), "f32")]),
    "max": (lambda x: -tnp.abs(x).max(), [((N,), "f32")]),
    "all": (lambda x: (x < 9).all(), [((N,), "f32")]),
    "argmin": (lambda x: tnp.argmin(x), [((N, 3), "f32")]),
    "norm": (lambda x: tnp.linalg.norm(x), [((N, 3), "f32")]),
    "softmax": (lambda x: trnx.nn.softmax(x, 0), [((N, 3), "f32")]),
    "logsumexp": (lambda x: trnx.nn.logsumexp(x), [((N,), "f32")]),
    "layer_norm": (lambda x: trnx.nn.layer_norm(x, axis=0), [((N, 3), "f32")]),
    "matmul": (lambda x, y: x.T @ y, [((N, 3), "f32"), ((N, 4), "f32")]),
    "attention": (
        lambda q, k, v: trnx.nn.softmax(q @ k.mT) @ v,
        [((2, N, 4), "f32"), ((2, N, 4), "f32"), ((2, N, 4), "f32")],
    ),
    "einsum": (lambda x, y: tnp.einsum("bni,bnj->ij", x, y), [((2, N, 3), "f32")] * 2),
    "last_row": (lambda x: x[-1], [((N, 4), "f32")]),
    "without_first": (lambda x: x[1:], [((N, 4), "f32")]),
    "reversed": (lambda x: x[::-1], [((N, 4), "f32")]),
    "every_second": (lambda x: x[::2], [((N, 4), "f32")]),
    "difference": (lambda x: x[1:] - x[:-1], [((N,), "f32")]),
    "concatenate": (lambda x: tnp.concatenate([x, -x, x[:2]]), [((N, 2), "f32")]),
    "flatten_rows": (lambda x: x.reshape(-1, 2), [((N, 4, 2), "f32")]),
    "flatten_inner": (lambda x: x.reshape(2, -1), [((2, N, 3), "f32")]),
    "repeat": (lambda x: tnp.repeat(x, 3), [((N,), "f32")]),
    "tile": (lambda x: tnp.tile(x, 2), [((N,), "f32")]),
    "roll": (lambda x: tnp.roll(x, 1), [((N,), "f32")]),
    "pad": (lambda x: tnp.pad(x, (1, 2)), [((N,), "f32")]),
    "outer_range": (lambda x: x + tnp.arange(x.shape[0]), [((N,), "f32")]),
    "causal_mask": (lambda x: tnp.tril(x), [((N, N), "f32")]),
    "one_hot": (lambda i: trnx.nn.one_hot(i, 4), [((N,), "i32")]),
    "embedding": (lambda i, t: trnx.nn.embedding(i, t), [((N,), "i32"), ((4, 3), "f32")]),
    "take_from_padded": (lambda x: x[tnp.asarray(np.array([0, 99, -1]))], [((N, 2), "f32")]),
    "scatter_into_padded": (
        lambda x: x.at[tnp.asarray(np.array([0, 99, -1]))].add(1.0),
        [((N,), "f32")],
    ),
    "set_row": (lambda x: x.at[-1].set(7.0), [((N, 2), "f32")]),
    "cross_entropy": (_loss, [((N, 4), "f32"), ((N,), "i32")]),
    "gradient": (grad(_loss), [((N, 4), "f32"), ((N,), "i32")]),
    "random": (lambda x: trnx.random.uniform(trnx.random.key(3), x.shape), [((2, N), "f32")]),
}


def _arguments(name: str, types: Any, n: int) -> list[np.ndarray[Any, Any]]:
    rng = np.random.default_rng(zlib.crc32(f"{name}{n}".encode()))
    arguments = []
    for shape, dtype in types:
        aval = make_aval([evaluate(size, {"n": n}) for size in shape], dtype)
        values = rng.integers(0, 4, aval.shape) if dtype == "i32" else rng.normal(size=aval.shape)
        arguments.append(np.asarray(values).astype(aval.dtype))
    return arguments


@pytest.mark.parametrize("name", CASES)
def test_padded_equals_exact(name: str) -> None:
    """NaN or the largest integer in the padding never shows."""
    function, types = CASES[name]
    avals = [make_aval(shape, dtype) for shape, dtype in types]
    program = trace_program(lambda *args: [function(*args)], avals, name)
    padded = pad_program(program, {"n": BUCKET})
    for n in SIZES:
        arguments = _arguments(name, types, n)
        buffers = []
        for value, aval in zip(arguments, padded.program.in_avals, strict=False):
            buffer = np.full(aval.shape, garbage(aval.dtype), aval.dtype)
            buffer[tuple(map(slice, value.shape))] = value
            buffers.append(buffer)
        (out,) = eval_program(padded.program, [*buffers, np.int32(n)])
        (shape,) = padded.out_shapes({"n": n})
        got = np.asarray(out)[tuple(map(slice, shape))]
        want = np.asarray(function(*map(tnp.asarray, arguments)))
        assert got.shape == want.shape and got.dtype == want.dtype
        bound = 1e-2 if got.dtype.itemsize == 2 else 1e-5
        np.testing.assert_allclose(
            got.astype(np.float64), want.astype(np.float64), rtol=bound, atol=bound
        )


@pytest.mark.parametrize(
    ("function", "error", "text"),
    [
        (lambda x: x + tnp.ones(5), DimError, "n == 5"),
        (lambda x: x[7], DimError, "n"),
        (lambda x: tnp.zeros(int(x.shape[0])), DimError, "Size n is symbolic"),
    ],
)
def test_what_sizes_do_not_decide(function: Any, error: Any, text: str) -> None:
    """A question the bounds leave open is an error with the user's line, never a guess."""
    with pytest.raises(error, match=f"(?s){text}.*at test_symbolic.py"):
        trace_program(lambda x: [function(x)], [make_aval((N,), "f32")])


@pytest.mark.parametrize("function", [tnp.prod, tnp.cumsum, tnp.cumprod])
def test_products_and_running_sums_of_any_size(function: Any) -> None:
    """One trace of a symbolic size gives the results of every size."""
    jitted = trnx.jit(function, dynamic={0: "n"})
    for size in (1, 5):
        x = np.linspace(0.5, 1.5, size).astype(np.float32)
        want = {tnp.prod: np.prod, tnp.cumsum: np.cumsum, tnp.cumprod: np.cumprod}[function](x)
        np.testing.assert_allclose(np.asarray(jitted(x)), want, rtol=1e-5)
