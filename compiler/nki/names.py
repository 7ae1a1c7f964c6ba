"""Names of NKI 0.6: dtypes, operators, and the few helper functions printed kernels may need."""

from __future__ import annotations

import ast
from typing import Any, Final

import numpy as np

from trnx.compiler.tile import isa
from trnx.core.dtypes import (
    bfloat16,
    bool_,
    float8_e4m3,
    float8_e4m3fn,
    float8_e5m2,
    float16,
    float32,
    int8,
    int16,
    int32,
    uint8,
    uint16,
    uint32,
)

DTYPE_NAMES: Final[dict[np.dtype[Any], str]] = {
    float32: "float32",
    bfloat16: "bfloat16",
    float16: "float16",
    float8_e4m3: "float8_e4m3",
    float8_e4m3fn: "float8_e4m3fn",
    float8_e5m2: "float8_e5m2",
    int8: "int8",
    int16: "int16",
    int32: "int32",
    uint8: "uint8",
    uint16: "uint16",
    uint32: "uint32",
}
"""Dtype to its name in ``nki.language``. bool is printed as ``bool8``, see ``BOOL_ALIAS``."""

DTYPES: Final[dict[str, np.dtype[Any]]] = {
    **{name: dtype for dtype, name in DTYPE_NAMES.items()},
    "bool_": bool_,
}
"""Name in ``nki.language`` to dtype."""

BOOL_ALIAS: Final = "bool8"
BOOL_LINE: Final = f"{BOOL_ALIAS} = nl.uint8  # a bool tile: one byte, 0 or 1"
INFINITY: Final = "INF"
INFINITY_LINE: Final = f'{INFINITY} = float("inf")'
NAN: Final = "NAN"
NAN_LINE: Final = f'{NAN} = float("nan")'

OPERATOR_NAMES: Final[dict[str, str]] = {
    name: {"bitwise_not": "invert"}.get(name, name) for name in (*isa.ALU, *isa.ACTIVATIONS)
}
"""ALU operator or activation function to its name in ``nki.language``."""

OPERATORS: Final[dict[str, str]] = {nki: ours for ours, nki in OPERATOR_NAMES.items()}
"""Name in ``nki.language`` to ALU operator or activation function."""

HELPERS: Final[dict[str, str]] = {
    "column": '''
def column(value, rows, dtype):
    """A [rows, 1] tile that holds a constant."""
    tile = nl.ndarray((rows, 1), dtype=dtype, buffer=nl.sbuf)
    nisa.memset(dst=tile, value=value)
    return tile
''',
    "repeat": '''
def repeat(tile, shape):
    """A [P, 1] tile repeated along the free axes of shape.

    nisa.tensor_scalar computes in fp32; with both operands as tiles GpSimd is exact in 32 bits.
    """
    pattern = [[tile.strides[0], shape[0]]]
    for size in shape[1:]:
        pattern.append([0, size])
    return tile.ap(pattern=pattern)
''',
    "scatter_add": '''
def scatter_add(dst, pattern, offset, index, src):
    """Add row p of src to row index[p] of dst; indices may repeat, so one row at a time."""
    row = [[pattern[0][0], 1]] + pattern[1:]
    for p in range(src.shape[0]):
        one = index[p : p + 1, 0:1]
        place = dst.ap(pattern=row, offset=offset, vector_offset=one, indirect_dim=0)
        nisa.dma_compute(dst=place, srcs=[place, src[p : p + 1]], reduce_op=nl.add)
''',
}
"""Functions printed before the kernels that call them; the reader knows them by their text."""


def helper_tree(name: str) -> str:
    """The syntax tree of a helper without docstring and positions, to compare functions by."""
    (function,) = ast.parse(HELPERS[name]).body
    assert isinstance(function, ast.FunctionDef)
    return function_tree(function)


def function_tree(function: ast.FunctionDef) -> str:
    """A function's syntax tree without docstring and positions."""
    body = function.body
    first = body[0]
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
        body = body[1:]
    shown = ast.FunctionDef(
        name=function.name,
        args=function.args,
        body=body,
        decorator_list=[],
        returns=None,
        type_comment=None,
    )
    return ast.dump(shown)


PARAMETERS: Final[dict[str, tuple[str, ...]]] = {
    "dma_copy": ("dst", "src", "priority", "oob_mode", "dge_mode", "engine", "name"),
    "dma_transpose": ("dst", "src", "axes", "priority", "dge_mode", "oob_mode", "name"),
    "dma_compute": ("dst", "srcs", "reduce_op", "scales", "unique_indices", "oob_mode", "name"),
    "nc_matmul": (
        "dst",
        "stationary",
        "moving",
        "is_stationary_onezero",
        "is_moving_onezero",
        "is_transpose",
        "accumulate",
        "tile_position",
        "tile_size",
        "perf_mode",
        "name",
    ),
    "nc_transpose": ("dst", "data", "engine", "name"),
    "activation": (
        "dst",
        "op",
        "data",
        "bias",
        "scale",
        "reduce_op",
        "reduce_res",
        "reduce_cmd",
        "name",
    ),
    "tensor_tensor": ("dst", "data1", "data2", "op", "engine", "name"),
    "tensor_scalar": (
        "dst",
        "data",
        "op0",
        "operand0",
        "reverse0",
        "op1",
        "operand1",
        "reverse1",
        "engine",
        "name",
    ),
    "scalar_tensor_tensor": (
        "dst",
        "data",
        "op0",
        "operand0",
        "op1",
        "operand1",
        "reverse0",
        "reverse1",
        "name",
    ),
    "tensor_reduce": ("dst", "op", "data", "axis", "negate", "keepdims", "name"),
    "tensor_tensor_scan": (
        "dst",
        "data0",
        "data1",
        "initial",
        "op0",
        "op1",
        "reverse0",
        "reverse1",
        "name",
    ),
    "tensor_copy": ("dst", "src", "engine", "name"),
    "tensor_copy_predicated": ("dst", "src", "predicate", "reverse_pred", "name"),
    "reciprocal": ("dst", "data", "name"),
    "memset": ("dst", "value", "engine", "name"),
    "iota": ("dst", "pattern", "offset", "channel_multiplier", "name"),
    "affine_select": (
        "dst",
        "pattern",
        "channel_multiplier",
        "on_true_tile",
        "on_false_value",
        "cmp_op",
        "offset",
        "name",
    ),
    "tensor_partition_reduce": ("dst", "op", "data", "name"),
    "max8": ("dst", "src", "name"),
    "nc_find_index8": ("dst", "data", "vals", "name"),
    "row_sort": ("dst", "index", "data", "descending"),  # an extension: never printed
}
"""Parameter names of each ``nki.isa`` function in order, as the public reference declares them."""
