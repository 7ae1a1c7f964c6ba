"""What the arithmetic instructions compute.

Each function takes an ``Operation`` and returns the values of its destinations. Everything is
computed in one dtype (fp32 on a NeuronCore; see ``alu.compute_dtype``) and cast once at the end.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trnx.compiler.sim import alu
from trnx.compiler.sim.cast import cast, is_integral
from trnx.compiler.sim.operation import Operation
from trnx.compiler.tile import functions_numpy
from trnx.core.dtypes import bool_, float32, float64, int32, uint32

Array = NDArray[Any]


def nc_matmul(op: Operation) -> list[Array]:
    """``dst[M, N] (+)= stationary[K, M].T @ moving[K, N]``, products and sums in fp32 (f64)."""
    stationary, moving = op.tile(0), op.tile(1)
    destination = op.outs[0]
    if stationary.shape[0] != moving.shape[0]:
        raise op.error(
            f"stationary has {stationary.shape[0]} partitions and moving {moving.shape[0]}",
            "Give both the same contraction size",
        )
    double = float64 in (stationary.dtype, moving.dtype, destination.dtype) and op.native
    dtype = float64 if double else float32
    left = cast(stationary, dtype).reshape(stationary.shape[0], -1)
    right = cast(moving, dtype).reshape(moving.shape[0], -1)
    shape = destination.shape
    if shape[0] != left.shape[1] or int(np.prod(shape[1:])) != right.shape[1]:
        op.require_same_shape(shape, (left.shape[1], *moving.shape[1:]))
    with np.errstate(all="ignore"):
        product = (left.T @ right).reshape(shape)
        if op.flag("accumulate"):
            product = cast(op.destination(0), dtype) + product
    return [cast(product, destination.dtype)]


def _activate(name: str, x: Array) -> Array:
    simple: dict[str, Callable[[Array], Any]] = {
        "copy": lambda v: v,
        "square": lambda v: v * v,
        "abs": np.abs,
        "sign": np.sign,
        "relu": lambda v: np.maximum(v, v.dtype.type(0)),
        "sqrt": np.sqrt,
    }
    if name in simple:
        return np.asarray(simple[name](x))
    if x.dtype == float64:
        return functions_f64(name, x)
    return functions_numpy.apply(name, x)


def functions_f64(name: str, x: Array) -> Array:
    """The transcendentals in f64 (target ``cpu``), from NumPy's functions and ``math.erf``."""
    one = np.float64(1)
    if name == "erf":
        return np.vectorize(math.erf, otypes=[np.float64])(x)
    if name == "gelu":
        return 0.5 * x * np.vectorize(math.erfc, otypes=[np.float64])(-x / math.sqrt(2.0))
    table: dict[str, Callable[[Array], Any]] = {
        "exp": np.exp,
        "log": np.log,
        "tanh": np.tanh,
        "sin": np.sin,
        "arctan": np.arctan,
        "sigmoid": lambda v: one / (one + np.exp(-v)),
        "silu": lambda v: v / (one + np.exp(-v)),
        "softplus": lambda v: np.logaddexp(v, 0.0),
        "gelu_apprx_tanh": lambda v: (
            0.5 * v * (one + np.tanh(math.sqrt(2 / math.pi) * (v + 0.044715 * v * v * v)))
        ),
        "rsqrt": lambda v: one / np.sqrt(v),
        "reciprocal": lambda v: one / v,
    }
    return np.asarray(table[name](x))


def activation(op: Operation) -> list[Array]:
    """``op(data * scale + bias)`` and, on request, its row sums."""
    data = op.tile(0)
    destination = op.outs[0]
    op.require_same_shape(destination.shape, data.shape)
    dtypes = op.tile_dtypes()
    double = op.native and (float64 in dtypes or destination.dtype == float64)
    dtype = float64 if double else float32
    with np.errstate(all="ignore"):
        x = cast(data, dtype)
        scale, bias = op.row_operand(2, dtype), op.row_operand(1, dtype)
        if scale is not None:
            x = x * scale
        if bias is not None:
            x = x + bias
        y = _activate(op.name("op"), x)
        results = [cast(y, destination.dtype)]
        if len(op.outs) > 1:
            if op.name("reduce_op", "add") != "add":
                raise op.error("activation reduces with add only", "Use reduce_op='add'")
            total = y.reshape(y.shape[0], -1).sum(axis=1, dtype=dtype)
            results.append(cast(total, op.outs[1].dtype).reshape(op.outs[1].shape))
    return results


def _chain(op: Operation, data: Array, steps: list[tuple[str, Any, bool]]) -> Array:
    """``data`` through ``(operator, operand, reverse)`` steps, cast to the first destination."""
    names = [name for name, _, _ in steps]
    destination = op.outs[0].dtype
    if alu.is_bitvec(names):
        width = data.dtype.itemsize
        bits = alu.to_bits(data, width)
        for name, value, reverse in steps:
            other = alu.to_bits(0 if value is None else value, width)
            left, right = (other, bits) if reverse else (bits, other)
            bits = np.asarray(alu.BITS[name](*np.broadcast_arrays(left, right)))
        return alu.from_bits(bits, data.dtype, destination)
    dtype = op.compute_dtype(names)
    with np.errstate(all="ignore"):
        result = cast(data, dtype)
        for name, value, reverse in steps:
            other = alu.operand(0 if value is None else value, dtype)
            result = alu.apply(name, result, other, reverse)
        return cast(np.broadcast_to(result, data.shape), destination)


def tensor_tensor(op: Operation) -> list[Array]:
    """``data1 op data2``."""
    left, right = op.tile(0), op.tile(1)
    op.require_same_shape(op.outs[0].shape, left.shape)
    op.require_same_shape(left.shape, right.shape)
    return [_chain(op, left, [(op.name("op"), right, False)])]


def tensor_scalar(op: Operation) -> list[Array]:
    """``(data op0 operand0) op1 operand1``."""
    data = op.tile(0)
    op.require_same_shape(op.outs[0].shape, data.shape)
    steps = [(op.name("op0"), op.row_value(1), op.flag("reverse0"))]
    second = op.name("op1", "")
    if second:
        steps.append((second, op.row_value(2), op.flag("reverse1")))
    return [_chain(op, data, steps)]


def scalar_tensor_tensor(op: Operation) -> list[Array]:
    """``(data op0 operand0) op1 operand1`` with a tile as second operand."""
    data, other = op.tile(0), op.tile(2)
    op.require_same_shape(op.outs[0].shape, data.shape)
    op.require_same_shape(data.shape, other.shape)
    steps = [
        (op.name("op0"), op.row_value(1), op.flag("reverse0")),
        (op.name("op1"), other, op.flag("reverse1")),
    ]
    return [_chain(op, data, steps)]


def _reduce(name: str, values: Array, axis: int) -> Array:
    if name in alu.BITS:
        ufunc = alu.BITS[name]
        assert isinstance(ufunc, np.ufunc)
        return np.asarray(ufunc.reduce(values, axis=axis))
    if name == "logical_and":
        return (values != 0).all(axis=axis).astype(values.dtype)
    if name == "logical_or":
        return (values != 0).any(axis=axis).astype(values.dtype)
    if name == "subtract":
        first = np.take(values, 0, axis=axis)
        rest = np.delete(values, 0, axis=axis)
        return np.asarray(first - rest.sum(axis=axis, dtype=values.dtype))
    ufuncs = {
        "add": np.add,
        "multiply": np.multiply,
        "maximum": np.maximum,
        "minimum": np.minimum,
    }
    return np.asarray(ufuncs[name].reduce(values, axis=axis, dtype=values.dtype))


def tensor_reduce(op: Operation) -> list[Array]:
    """Reduces the trailing free axes; ``negate`` flips the sign of an arithmetic result."""
    data = op.tile(0)
    axes = tuple(sorted(op.axes("axis")))
    if axes != tuple(range(data.ndim - len(axes), data.ndim)) or not axes or axes[0] < 1:
        raise op.error(
            f"tensor_reduce over axes {list(axes)} of a {data.ndim}-dimensional access",
            "Name the trailing free axes",
        )
    kept = data.shape[: data.ndim - len(axes)]
    destination = op.outs[0]
    expected = kept if len(kept) > 1 else (*kept, 1)
    op.require_same_shape(destination.shape, expected)
    name = op.name("op")
    flat = data.reshape(*kept, -1)
    if flat.shape[-1] == 0:
        raise op.error("tensor_reduce over no elements", "Give at least one element per row")
    if alu.is_bitvec([name]):
        bits = _reduce(name, alu.to_bits(flat, flat.dtype.itemsize), -1)
        return [alu.from_bits(bits, data.dtype, destination.dtype).reshape(expected)]
    dtype = op.compute_dtype([name])
    with np.errstate(all="ignore"):
        result = _reduce(name, cast(flat, dtype), -1)
        if op.flag("negate"):
            result = -result
    return [cast(result, destination.dtype).reshape(expected)]


def tensor_tensor_scan(op: Operation) -> list[Array]:
    """``r[i] = (data0[i] op0 r[i-1]) op1 data1[i]`` along the flattened free axis."""
    first, second = op.tile(0), op.tile(1)
    destination = op.outs[0]
    op.require_same_shape(destination.shape, first.shape)
    op.require_same_shape(first.shape, second.shape)
    name0, name1 = op.name("op0"), op.name("op1")
    dtype = op.compute_dtype([name0, name1])
    rows = first.shape[0]
    a = cast(first, dtype).reshape(rows, -1)
    b = cast(second, dtype).reshape(rows, -1)
    initial = op.row_value(2)
    state = np.broadcast_to(alu.operand(0 if initial is None else initial, dtype), (rows, 1))
    result = np.empty(a.shape, dtype)
    running = state.reshape(rows)
    with np.errstate(all="ignore"):
        for i in range(a.shape[1]):
            running = alu.apply(name1, alu.apply(name0, a[:, i], running), b[:, i])
            result[:, i] = running
    return [cast(result, destination.dtype).reshape(destination.shape)]


def reciprocal(op: Operation) -> list[Array]:
    """``1 / data``, correctly rounded."""
    data = op.tile(0)
    destination = op.outs[0]
    op.require_same_shape(destination.shape, data.shape)
    double = op.native and float64 in (data.dtype, destination.dtype)
    with np.errstate(all="ignore"):
        dtype = float64 if double else float32
        return [cast(np.asarray(dtype.type(1) / cast(data, dtype)), destination.dtype)]


def tensor_partition_reduce(op: Operation) -> list[Array]:
    """Reduces across partitions into one row."""
    data = op.tile(0)
    destination = op.outs[0]
    op.require_same_shape(destination.shape, (1, *data.shape[1:]))
    name = op.name("op")
    if alu.is_bitvec([name]):
        bits = _reduce(name, alu.to_bits(data, data.dtype.itemsize), 0)
        return [alu.from_bits(bits[None], data.dtype, destination.dtype)]
    dtype = op.compute_dtype([name])
    with np.errstate(all="ignore"):
        return [cast(_reduce(name, cast(data, dtype), 0)[None], destination.dtype)]


def _rows(op: Operation, index: int) -> Array:
    """An operand flattened to ``[P, N]`` for ordering: exact integers on cpu, else fp32 (f64)."""
    data = op.tile(index)
    flat = data.reshape(data.shape[0], -1)
    if op.native and (flat.dtype == float64 or (is_integral(flat.dtype) and flat.dtype != bool_)):
        return flat
    return cast(flat, float32)


def max8(op: Operation) -> list[Array]:
    """The eight largest values of each partition in descending order; NaN counts as -inf."""
    values = _rows(op, 0)
    if values.shape[1] < 8:
        raise op.error(f"max8 over {values.shape[1]} elements", "Give at least 8")
    if values.dtype.kind not in "iu":
        values = np.where(np.isnan(values), -np.inf, values).astype(values.dtype)
    top = np.flip(np.sort(values, axis=1)[:, -8:], axis=1)
    destination = op.outs[0]
    op.require_same_shape(destination.shape, (values.shape[0], 8))
    return [cast(top, destination.dtype)]


def nc_find_index8(op: Operation) -> list[Array]:
    """Index of the first unused match of each of eight values; all ones when there is none."""
    data, wanted = _rows(op, 0), _rows(op, 1)
    op.require_same_shape(wanted.shape, (data.shape[0], 8))
    result = np.full(wanted.shape, -1, np.int64)
    rows = np.arange(data.shape[0])
    used = np.zeros(data.shape, np.bool_)
    for k in range(8):
        matches = (data == wanted[:, k : k + 1]) & ~used
        found = matches.any(axis=1)
        position = matches.argmax(axis=1)
        result[found, k] = position[found]
        used[rows[found], position[found]] = True
    destination = op.outs[0]
    op.require_same_shape(destination.shape, wanted.shape)
    return [cast(cast(result, uint32 if destination.dtype != int32 else int32), destination.dtype)]


def _order(values: Array, descending: bool) -> NDArray[np.int64]:
    """Stable order of each row: NaN above everything, zeros of both signs equal."""
    if values.dtype.kind in "iub":
        ranks = values
    else:
        ranks = np.where(values != values, np.inf, values.astype(np.float64))
    missing = values != values
    if descending:  # the last of equal elements in reverse is the first
        n = values.shape[1]
        turned = np.lexsort((ranks[:, ::-1], missing[:, ::-1]), axis=1)
        return (n - 1 - turned)[:, ::-1]
    return np.lexsort((ranks, missing), axis=1)


def row_sort(op: Operation) -> list[Array]:
    """The first K elements of each partition in order, and their places."""
    data = op.tile(0)
    values = data.reshape(data.shape[0], -1)
    order = _order(values, op.flag("descending"))[:, : op.outs[0].shape[1]]
    op.require_same_shape(op.outs[0].shape, order.shape)
    op.require_same_shape(op.outs[1].shape, order.shape)
    return [np.take_along_axis(values, order, 1), order.astype(op.outs[1].dtype)]


COMPUTE = {
    "nc_matmul": nc_matmul,
    "activation": activation,
    "tensor_tensor": tensor_tensor,
    "tensor_scalar": tensor_scalar,
    "scalar_tensor_tensor": scalar_tensor_tensor,
    "tensor_reduce": tensor_reduce,
    "tensor_tensor_scan": tensor_tensor_scan,
    "reciprocal": reciprocal,
    "tensor_partition_reduce": tensor_partition_reduce,
    "max8": max8,
    "nc_find_index8": nc_find_index8,
    "row_sort": row_sort,
}
"""Arithmetic by instruction name."""
