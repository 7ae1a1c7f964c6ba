"""Every instruction against NumPy written by hand here."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tests.sim.programs import Array, Tile, rng, run, run_op
from trnx.compiler.sim.clock import CYCLES
from trnx.compiler.sim.machine import SEMANTICS
from trnx.compiler.tile import isa
from trnx.compiler.tile.build import KernelBuilder
from trnx.core.dtypes import (
    bfloat16,
    bool_,
    float16,
    float32,
    float64,
    int8,
    int32,
    int64,
    uint8,
    uint32,
)
from trnx.core.errors import TileError

F = float32
X, Y, Z = Tile(0), Tile(1), Tile(2)


def floats(*shape: int, seed: int = 1, dtype: Any = float32) -> Array:
    """Normal random numbers."""
    return rng(seed).standard_normal(shape).astype(float32).astype(dtype)


def ints(*shape: int, seed: int = 2, dtype: Any = int32) -> Array:
    """Integers over the whole range."""
    info = np.iinfo(dtype)
    return rng(seed).integers(info.min, info.max, shape, dtype, endpoint=True)


def test_every_instruction_has_a_meaning_and_a_cost() -> None:
    """The tables cover the instruction set exactly."""
    assert set(SEMANTICS) == set(isa.SPECS)
    assert set(CYCLES) == {name for name, spec in isa.SPECS.items() if not spec.is_dma}


COMPARES = {
    "equal": np.equal,
    "not_equal": np.not_equal,
    "less": np.less,
    "less_equal": np.less_equal,
    "greater": np.greater,
    "greater_equal": np.greater_equal,
}
ARITHMETIC = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "maximum": np.maximum,
    "minimum": np.minimum,
}


@pytest.mark.parametrize("op", [*ARITHMETIC, *COMPARES])
def test_tensor_tensor(op: str) -> None:
    """fp32 operands, fp32 result; compares are 1 and 0."""
    a, b = floats(128, 33), floats(128, 33, seed=3)
    b[::2] = a[::2]
    got = run_op("tensor_tensor", [a, b], (128, 33), F, X, Y, op=op)
    expected = {**ARITHMETIC, **COMPARES}[op](a, b).astype(F)
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("op", ["logical_and", "logical_or", "logical_xor"])
def test_logical(op: str) -> None:
    """Non-zero is true."""
    a, b = np.array([[0.0, 2.0, 0.0, -1.0]], F), np.array([[0.0, 0.0, 3.0, 5.0]], F)
    got = run_op("tensor_tensor", [a, b], (1, 4), bool_, X, Y, op=op)
    expected = getattr(np, op)(a, b)
    np.testing.assert_array_equal(got, expected)


def test_logical_not_is_unary() -> None:
    """The operand of a unary operator is ignored."""
    a = np.array([[0.0, 2.0]], F)
    got = run_op("tensor_scalar", [a], (1, 2), F, X, 7.0, op0="logical_not")
    np.testing.assert_array_equal(got, [[1.0, 0.0]])


@pytest.mark.parametrize("dtype", [bfloat16, float16])
def test_one_rounding_at_the_write(dtype: Any) -> None:
    """16-bit operands are widened, the sum of two operators is rounded once."""
    a, b = floats(8, 64, dtype=dtype), floats(8, 64, seed=5, dtype=dtype)
    got = run_op(
        "scalar_tensor_tensor",
        [a, b],
        (8, 64),
        dtype,
        X,
        1.0009765625,
        Y,
        op0="multiply",
        op1="add",
    )
    expected = (a.astype(F) * F.type(1.0009765625) + b.astype(F)).astype(dtype)
    np.testing.assert_array_equal(got.view(np.uint16), expected.view(np.uint16))


def test_tensor_scalar_reverse_and_row_scalars() -> None:
    """``reverse`` swaps sides; a [P, 1] operand differs per partition."""
    a, row = floats(64, 20), floats(64, 1, seed=9)
    got = run_op(
        "tensor_scalar",
        [a, row],
        (64, 20),
        F,
        X,
        Y,
        2.0,
        op0="subtract",
        reverse0=True,
        op1="multiply",
    )
    np.testing.assert_array_equal(got, (row - a) * F.type(2))


@pytest.mark.parametrize("op", ["add", "subtract", "multiply"])
@pytest.mark.parametrize("dtype", [int32, uint32])
def test_exact_integers_on_gpsimd(op: str, dtype: Any) -> None:
    """32-bit integers wrap on GpSimd."""
    a, b = ints(128, 40, dtype=dtype), ints(128, 40, seed=8, dtype=dtype)
    got = run_op("tensor_tensor", [a, b], (128, 40), dtype, X, Y, op=op, engine="gpsimd")
    np.testing.assert_array_equal(got, ARITHMETIC[op](a, b))


def test_integers_on_vector_go_through_fp32() -> None:
    """VectorE adds int32 in fp32: inexact above 2**24, saturating."""
    a = np.array([[2**24, 2**31 - 1, -(2**31)]], int32)
    b = np.array([[1, 2**31 - 1, -(2**31)]], int32)
    got = run_op("tensor_tensor", [a, b], (1, 3), int32, X, Y, op="add", engine="vector")
    np.testing.assert_array_equal(got, [[2**24, 2**31 - 1, -(2**31)]])


@pytest.mark.parametrize("op", ["bitwise_and", "bitwise_or", "bitwise_xor"])
def test_bitwise(op: str) -> None:
    """Bits are kept."""
    a, b = ints(32, 10, dtype=uint32), ints(32, 10, seed=4, dtype=uint32)
    got = run_op("tensor_tensor", [a, b], (32, 10), uint32, X, Y, op=op)
    np.testing.assert_array_equal(got, getattr(np, op)(a, b))


def test_shifts() -> None:
    """Logical right shift also on int32; counts of 32 and more clear every bit."""
    a = np.array([[-1, 5, 2**30]], int32)
    right = run_op("tensor_scalar", [a], (1, 3), int32, X, 4, op0="right_shift")
    np.testing.assert_array_equal(right, (a.view(uint32) >> 4).view(int32))
    left = run_op("tensor_scalar", [a], (1, 3), int32, X, 31, op0="left_shift")
    np.testing.assert_array_equal(left, [[-(2**31), -(2**31), 0]])
    gone = run_op("tensor_scalar", [a], (1, 3), int32, X, 32, op0="right_shift")
    np.testing.assert_array_equal(gone, [[0, 0, 0]])
    signed = run_op(
        "tensor_scalar", [a], (1, 3), int32, X, 40, op0="arithmetic_shift_right", target="cpu"
    )
    np.testing.assert_array_equal(signed, [[-1, 0, 0]])


def test_bitwise_not_keeps_bool_a_bool() -> None:
    """bool is 0 or 1 after every operator."""
    a = np.array([[True, False]])
    got = run_op("tensor_scalar", [a], (1, 2), bool_, X, 0, op0="bitwise_not")
    np.testing.assert_array_equal(got.view(uint8), [[0, 1]])


REDUCTIONS = {"add": np.sum, "multiply": np.prod, "maximum": np.max, "minimum": np.min}


@pytest.mark.parametrize("op", REDUCTIONS)
def test_tensor_reduce(op: str) -> None:
    """Trailing axes only; nothing left gives [P, 1]."""
    a = floats(100, 6, 7)
    inner = run_op("tensor_reduce", [a], (100, 6), F, X, op=op, axis=(2,))
    np.testing.assert_allclose(inner, REDUCTIONS[op](a, axis=2), rtol=1e-5)
    both = run_op("tensor_reduce", [a], (100, 1), F, X, op=op, axis=(1, 2), negate=True)
    np.testing.assert_allclose(both[:, 0], -REDUCTIONS[op](a, axis=(1, 2)), rtol=2e-5, atol=1e-5)


def test_tensor_reduce_bits() -> None:
    """Bitwise reductions are exact."""
    a = ints(16, 9, dtype=uint32)
    got = run_op("tensor_reduce", [a], (16, 1), uint32, X, op="bitwise_or", axis=(1,))
    np.testing.assert_array_equal(got[:, 0], np.bitwise_or.reduce(a, axis=1))


def test_scan() -> None:
    """``r[i] = r[i-1]*a[i] + b[i]``, row scalars as the initial value."""
    a, b, start = floats(8, 30), floats(8, 30, seed=6), floats(8, 1, seed=7)
    got = run_op(
        "tensor_tensor_scan", [a, b, start], (8, 30), F, X, Y, Z, op0="multiply", op1="add"
    )
    state, expected = start[:, 0], np.empty_like(a)
    for i in range(30):
        state = (a[:, i] * state + b[:, i]).astype(F)
        expected[:, i] = state
    np.testing.assert_array_equal(got, expected)


def test_partition_reduce() -> None:
    """One row, the sum over partitions."""
    a = floats(128, 12)
    got = run_op("tensor_partition_reduce", [a], (1, 12), F, X, op="add")
    np.testing.assert_allclose(got[0], a.sum(0), rtol=1e-5, atol=1e-5)


# Activation -----------------------------------------------------------------------------------

EXACT = {
    "copy": lambda v: v,
    "square": lambda v: v * v,
    "abs": np.abs,
    "sign": np.sign,
    "relu": lambda v: np.maximum(v, 0),
    "sqrt": lambda v: np.sqrt(np.abs(v)),
    "exp": np.exp,
    "log": lambda v: np.log(np.abs(v)),
    "tanh": np.tanh,
    "sin": np.sin,
    "arctan": np.arctan,
    "sigmoid": lambda v: 1 / (1 + np.exp(-v)),
    "silu": lambda v: v / (1 + np.exp(-v)),
    "softplus": lambda v: np.log1p(np.exp(v)),
    "erf": np.vectorize(math.erf),
    "gelu": lambda v: 0.5 * v * (1 + np.vectorize(math.erf)(v / math.sqrt(2))),
    "gelu_apprx_tanh": lambda v: (
        0.5 * v * (1 + np.tanh(math.sqrt(2 / math.pi) * (v + 0.044715 * v**3)))
    ),
    "rsqrt": lambda v: 1 / np.sqrt(np.abs(v)),
    "reciprocal": lambda v: 1 / v,
}
POSITIVE = ("sqrt", "log", "rsqrt")


@pytest.mark.parametrize("op", isa.ACTIVATIONS)
@pytest.mark.parametrize("target", ["trn2", "cpu"])
def test_activation(op: str, target: str) -> None:
    """fp32 functions against f64 to 4 ulp of the result's scale; f64 on cpu to 1e-14."""
    dtype = float32 if target == "trn2" else float64
    a = floats(64, 50).astype(dtype)
    if op in POSITIVE:
        a = np.abs(a)
    got = run_op("activation", [a], (64, 50), dtype, X, op=op, target=target)
    expected = EXACT[op](a.astype(float64))
    unit = 4 * 2.0**-24 if target == "trn2" else 1e-14
    # gelu's own formula loses relative accuracy in the tail, so its scale is that of x.
    scale = np.maximum(np.abs(expected), 0.01 * np.abs(a.astype(float64)))
    assert (np.abs(got - expected) <= 2 * unit * scale + 1e-300).all()


def test_activation_scale_bias_and_sum() -> None:
    """``tanh(x*scale + bias)`` with row operands; the sum is taken before the cast."""
    a, scale, bias = floats(32, 40), floats(32, 1, seed=11), floats(32, 1, seed=12)

    def write(b: KernelBuilder) -> None:
        x = [b.param(f"x{i}", v.shape, F, "in") for i, v in enumerate((a, scale, bias))]
        y, s = b.param("y", (32, 40), bfloat16, "out"), b.param("s", (32, 1), F, "out")
        tiles = [b.sbuf(v.shape, F) for v in x]
        for tile, view in zip(tiles, x, strict=True):
            b.dma_copy(tile, view)
        out, total = b.sbuf((32, 40), bfloat16), b.sbuf((32, 1), F)
        b.activation(
            out,
            tiles[0],
            op="tanh",
            scale=tiles[1],
            bias=tiles[2],
            reduce_op="add",
            reduce_res=total,
        )
        b.dma_copy(y, out)
        b.dma_copy(s, total)

    y, s = run(write, [a, scale, bias]).outputs
    expected = np.tanh(a.astype(float64) * scale + bias)
    np.testing.assert_allclose(y.astype(float64), expected, atol=2.0**-8)
    np.testing.assert_allclose(s[:, 0], expected.sum(1), rtol=1e-4, atol=1e-5)


def test_reciprocal_is_correctly_rounded() -> None:
    """One division; zero gives inf."""
    a = np.concatenate([floats(1, 99), np.array([[0.0]], F)], axis=1)
    got = run_op("reciprocal", [a], (1, 100), F, X)
    with np.errstate(divide="ignore"):
        np.testing.assert_array_equal(got, F.type(1) / a)


# Matmul and transpose -------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [float32, bfloat16, float16])
def test_matmul(dtype: Any) -> None:
    """``stationary.T @ moving`` in fp32."""
    a, b = floats(96, 64, dtype=dtype), floats(96, 200, seed=3, dtype=dtype)
    got = run_op("nc_matmul", [a, b], (64, 200), F, X, Y, memory="psum")
    expected = a.astype(float64).T @ b.astype(float64)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-4)


def test_matmul_f64_on_cpu() -> None:
    """f64 operands multiply in f64 on cpu."""
    a, b = floats(50, 30).astype(float64), floats(50, 20, seed=3).astype(float64)
    got = run_op("nc_matmul", [a, b], (30, 20), float64, X, Y, memory="psum", target="cpu")
    np.testing.assert_allclose(got, a.T @ b, rtol=1e-13)


@pytest.mark.parametrize("dtype", [float32, bfloat16, int32, uint8])
def test_transpose_keeps_bits(dtype: Any) -> None:
    """Any dtype, NaN payloads included."""
    raw = rng().integers(0, 256, (40, 30 * dtype.itemsize), np.uint8)
    a = raw.view(dtype)
    got = run_op("nc_transpose", [a], (30, 40), dtype, X, memory="psum")
    bits = np.dtype(f"u{dtype.itemsize}")
    np.testing.assert_array_equal(got.view(bits), np.ascontiguousarray(a.T).view(bits))


# Movement -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [float32, bfloat16, np.dtype(np.int64), bool_, uint8])
def test_tensor_copy_keeps_bits(dtype: Any) -> None:
    """Equal dtypes are copied bit by bit."""
    raw = rng().integers(0, 2 if dtype == bool_ else 256, (16, 8 * dtype.itemsize), np.uint8)
    a = raw.view(dtype)
    got = run_op("tensor_copy", [a], a.shape, dtype, X)
    bits = np.dtype(f"u{dtype.itemsize}")
    np.testing.assert_array_equal(got.view(bits), a.view(bits))


def test_copy_predicated() -> None:
    """Only selected elements are written; the others may stay uninitialised."""
    a, mask = floats(8, 16), rng().integers(0, 2, (8, 16)).astype(uint8)

    def write(b: KernelBuilder) -> None:
        x, m = b.param("x", (8, 16), F), b.param("m", (8, 16), uint8)
        y = b.param("y", (8, 16), F, "out")
        t, p, o = b.sbuf((8, 16), F), b.sbuf((8, 16), uint8), b.sbuf((8, 16), F)
        b.dma_copy(t, x)
        b.dma_copy(p, m)
        b.tensor_copy_predicated(o, t, p)
        b.tensor_copy_predicated(o, -1.0, p, reverse_pred=True)
        b.dma_copy(y, o)

    got = run(write, [a, mask]).outputs[0]
    np.testing.assert_array_equal(got, np.where(mask, a, -1))


def test_iota_wraps_in_int32() -> None:
    """offset + p*multiplier + Σ index*step."""
    got = run_op(
        "iota",
        [],
        (4, 6),
        int32,
        pattern=((10, 2), (-1, 3)),
        offset=2**31 - 5,
        channel_multiplier=100,
    )
    p, i, j = np.ogrid[0:4, 0:2, 0:3]
    expected = (2**31 - 5 + 100 * p + 10 * i - j).astype(np.int64).astype(int32).reshape(4, 6)
    np.testing.assert_array_equal(got, expected)
    as_float = run_op("iota", [], (2, 3), F, pattern=((1, 3),), channel_multiplier=3)
    np.testing.assert_array_equal(as_float, [[0, 1, 2], [3, 4, 5]])


def test_affine_select_is_a_causal_mask() -> None:
    """Keep where p - i >= 0."""
    a = floats(20, 20)
    got = run_op(
        "affine_select",
        [a],
        (20, 20),
        F,
        X,
        float("-inf"),
        pattern=((-1, 20),),
        channel_multiplier=1,
        cmp_op="greater_equal",
    )
    np.testing.assert_array_equal(got, np.where(np.tri(20, dtype=bool), a, -np.inf))


def test_max8_and_find_index8() -> None:
    """Ties take the next index; a value that is not there gives all ones."""
    a = np.array([[3, 9, 9, 1, 5, 9, 2, 8, 7, 6]], F)
    top = run_op("max8", [a], (1, 8), F, X)
    np.testing.assert_array_equal(top, [[9, 9, 9, 8, 7, 6, 5, 3]])
    at = run_op("nc_find_index8", [a, top], (1, 8), uint32, X, Y)
    np.testing.assert_array_equal(at, [[1, 2, 5, 7, 8, 9, 4, 0]])
    absent = np.array([[4, 9, 9, 9, 9, 1, 1, 2]], F)
    at = run_op("nc_find_index8", [a, absent], (1, 8), uint32, X, Y)
    none = 2**32 - 1
    np.testing.assert_array_equal(at, [[none, 1, 2, 5, none, 3, none, 6]])


SORTED_SHAPES = ((3, 1, 1), (2, 20, 20), (3, 33, 33), (2, 700, 700), (2, 700, 5), (1, 300, 40))


@pytest.mark.parametrize("dtype", [F, bfloat16, float16, int32, int64, uint8, int8, bool_], ids=str)
@pytest.mark.parametrize("descending", [False, True])
def test_row_sort(descending: bool, dtype: Any) -> None:
    """Stable by value: NaN is largest, zeros of both signs are equal; any part from the front."""
    for rows, size, wanted in SORTED_SHAPES:
        a = rng(size).integers(0, 50, (rows, size)).astype(dtype)
        if np.dtype(dtype).kind not in "iub":
            a = (a - np.asarray(25, dtype)).astype(dtype)
            specials = np.array([np.nan, -np.nan, np.inf, -np.inf, -0.0, 0.0], dtype)
            a = np.where(rng(1).random(a.shape) < 0.3, rng(2).choice(specials, a.shape), a)
            a = a.astype(dtype)

        def write(b: KernelBuilder, shape: tuple[int, int] = a.shape, wanted: int = wanted) -> None:
            x = b.param("x", shape, dtype)
            y = b.param("y", (shape[0], wanted), dtype, "out")
            z = b.param("z", (shape[0], wanted), int32, "out")
            data = b.sbuf(shape, dtype)
            values, places = b.sbuf((shape[0], wanted), dtype), b.sbuf((shape[0], wanted), int32)
            b.dma_copy(data, x)
            b.row_sort(values, places, data, descending=descending)
            b.dma_copy(y, values)
            b.dma_copy(z, places)

        got, at = run(write, [a]).outputs
        wide = a.astype(np.float64)
        key = [(int(v != v), 0.0 if v != v else float(v)) for v in wide.reshape(-1)]
        for row in range(rows):
            own = key[row * size : (row + 1) * size]
            order = sorted(range(size), key=own.__getitem__)
            if descending:
                order = sorted(range(size), key=lambda i, own=own: (-own[i][0], -own[i][1]))
            np.testing.assert_array_equal(at[row], order[:wanted])
            assert got[row].tobytes() == a[row][order[:wanted]].tobytes()


def test_memset_kinds() -> None:
    """Floats round, integers are exact, bool is 0 or 1."""
    for value, dtype in ((1.1, bfloat16), (-7, int32), (1, bool_), (2.5, float16)):
        got = run_op("memset", [], (4, 5), dtype, value)
        np.testing.assert_array_equal(got, np.full((4, 5), value).astype(dtype))


def test_dma_transpose_and_casts() -> None:
    """DMA casts through fp32, but exactly between integers."""
    a = ints(16, 32)

    def write(b: KernelBuilder) -> None:
        x, y = b.param("x", (16, 32), int32), b.param("y", (32, 16), int32, "out")
        w = b.param("w", (16, 32), np.dtype(np.int64), "out")
        f = b.param("f", (16, 32), F, "out")
        t = b.sbuf((16, 32), int32)
        b.dma_copy(t, x)
        b.dma_transpose(y, t)
        b.dma_copy(w, t)
        b.dma_copy(f, t)

    y, w, f = run(write, [a], target="cpu").outputs
    np.testing.assert_array_equal(y, a.T)
    np.testing.assert_array_equal(w, a.astype(np.int64))
    np.testing.assert_array_equal(f, a.astype(F))


@pytest.mark.parametrize("dtype", [float32, bfloat16, int32])
def test_dma_compute_accumulates_repeats(dtype: Any) -> None:
    """Repeated rows add up one after the other, each sum rounded to the destination."""
    a = floats(6, 4, dtype=dtype) if dtype != int32 else ints(6, 4)
    index = np.array([[2], [0], [2], [2], [1], [0]], int32)

    def write(b: KernelBuilder) -> None:
        x, i = b.param("x", (6, 4), dtype), b.param("i", (6, 1), int32)
        y = b.param("y", (3, 4), dtype, "out")
        t, n, z = b.sbuf((6, 4), dtype), b.sbuf((6, 1), int32), b.sbuf((3, 4), dtype)
        b.memset(z, 0)
        b.dma_copy(y, z)
        b.dma_copy(t, x)
        b.dma_copy(n, i)
        b.dma_compute(y.indexed(n), t)

    got = run(write, [a, index]).outputs[0]
    expected = np.zeros((3, 4), dtype)
    with np.errstate(over="ignore"):
        for row, k in enumerate(index[:, 0]):
            if dtype == int32:
                expected[k] += a[row]
            else:
                expected[k] = (expected[k].astype(F) + a[row].astype(F)).astype(dtype)
    np.testing.assert_array_equal(got.astype(float64), expected.astype(float64))


def test_gather_and_scatter_rows() -> None:
    """An index tile picks HBM rows on either side."""
    a, index = floats(10, 5), np.array([[7], [0], [7], [3]], int32)
    places = np.array([[2], [5], [0], [4]], int32)

    def write(b: KernelBuilder) -> None:
        x, i, j = b.param("x", (10, 5), F), b.param("i", (4, 1), int32), b.param("j", (4, 1), int32)
        y = b.param("y", (6, 5), F, "out")
        n, m, t, z = b.sbuf((4, 1), int32), b.sbuf((4, 1), int32), b.sbuf((4, 5), F), None
        z = b.sbuf((6, 5), F)
        b.memset(z, 0.0)
        b.dma_copy(y, z)
        b.dma_copy(n, i)
        b.dma_copy(m, j)
        b.dma_copy(t, x.indexed(n))
        b.dma_copy(y.indexed(m), t)

    got = run(write, [a, index, places]).outputs[0]
    expected = np.zeros((6, 5), F)
    expected[places[:, 0]] = a[index[:, 0]]
    np.testing.assert_array_equal(got, expected)


# cpu ------------------------------------------------------------------------------------------


def test_native_arithmetic_on_cpu() -> None:
    """Integers are exact in their own type, f64 in f64, division is true division."""
    a, b = ints(8, 8, dtype=np.dtype(np.int64)), ints(8, 8, seed=3, dtype=np.dtype(np.int64))
    i64 = np.dtype(np.int64)
    with np.errstate(over="ignore"):
        for op in ("add", "subtract", "multiply", "maximum"):
            got = run_op("tensor_tensor", [a, b], (8, 8), i64, X, Y, op=op, target="cpu")
            np.testing.assert_array_equal(got, ARITHMETIC[op](a, b))
        for op, reference in (("floordivide", np.floor_divide), ("remainder", np.remainder)):
            got = run_op("tensor_tensor", [a, b], (8, 8), i64, X, Y, op=op, target="cpu")
            np.testing.assert_array_equal(got, reference(a, b))
    near = a + 1
    got = run_op("tensor_tensor", [a, near], (8, 8), bool_, X, Y, op="less", target="cpu")
    assert got.all()
    f = floats(8, 8).astype(float64)
    got = run_op("tensor_scalar", [f], (8, 8), float64, X, 3.0, op0="divide", target="cpu")
    np.testing.assert_array_equal(got, f / 3)


def test_integer_division_by_zero_gives_zero() -> None:
    """Written here because NumPy warns."""
    a, zero = np.array([[5, -3]], int32), np.array([[0, 0]], int32)
    for op in ("floordivide", "remainder"):
        got = run_op("tensor_tensor", [a, zero], (1, 2), int32, X, Y, op=op, target="cpu")
        np.testing.assert_array_equal(got, [[0, 0]])


def test_power() -> None:
    """Floats through the C library; integers exactly, negative exponents included."""
    a = np.array([[1.5, 2.0, 0.5]], F)
    got = run_op("tensor_scalar", [a], (1, 3), F, X, 3.0, op0="power", engine="gpsimd")
    np.testing.assert_allclose(got, a**3, rtol=1e-7)
    base = np.array([[3, -1, -1, 1, 2, 7]], int32)
    exponent = np.array([[13, -3, -2, -9, -1, 0]], int32)
    got = run_op("tensor_tensor", [base, exponent], (1, 6), int32, X, Y, op="power", target="cpu")
    np.testing.assert_array_equal(got, [[3**13, -1, 1, 1, 0, 1]])


# Errors ---------------------------------------------------------------------------------------


def test_shape_mismatch_names_shapes_line_and_remedy() -> None:
    """One sentence on cause, the line, one remedy."""
    with pytest.raises(
        TileError,
        match=r"tensor_tensor: shapes \[4, 5\] and \[4, 6\] differ \(at .*programs.py:\d+ "
        r"\(write\)\)\. Give every operand the same partition and free counts\.",
    ):
        run_op("tensor_tensor", [floats(4, 5), floats(4, 6)], (4, 5), F, X, Y, op="add")
