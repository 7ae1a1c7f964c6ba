"""The primitives as functions, with `jax.lax` names where it has the operation.

They take operands of equal dtypes, and of equal shapes or without axes; `trnx.numpy` promotes and
broadcasts on top of them. Loops and branches take functions of trees of arrays.
"""

import importlib
from typing import TYPE_CHECKING, Any

from trnx.numpy._public import publish as _publish
from trnx.ops.functions import abs as abs
from trnx.ops.functions import add as add
from trnx.ops.functions import argmax as argmax
from trnx.ops.functions import argmin as argmin
from trnx.ops.functions import bitwise_and as bitwise_and
from trnx.ops.functions import bitwise_not as bitwise_not
from trnx.ops.functions import bitwise_or as bitwise_or
from trnx.ops.functions import bitwise_xor as bitwise_xor
from trnx.ops.functions import broadcast as broadcast
from trnx.ops.functions import ceil as ceil
from trnx.ops.functions import clamp as clamp
from trnx.ops.functions import concatenate as concatenate
from trnx.ops.functions import convert as convert
from trnx.ops.functions import cos as cos
from trnx.ops.functions import div as div
from trnx.ops.functions import dot_general as dot_general
from trnx.ops.functions import eq as eq
from trnx.ops.functions import erf as erf
from trnx.ops.functions import erf_inv as erf_inv
from trnx.ops.functions import exp as exp
from trnx.ops.functions import expm1 as expm1
from trnx.ops.functions import floor as floor
from trnx.ops.functions import floor_divide as floor_divide
from trnx.ops.functions import full as full
from trnx.ops.functions import ge as ge
from trnx.ops.functions import gt as gt
from trnx.ops.functions import integer_pow as integer_pow
from trnx.ops.functions import iota as iota
from trnx.ops.functions import le as le
from trnx.ops.functions import linear_recurrence as linear_recurrence
from trnx.ops.functions import log as log
from trnx.ops.functions import log1p as log1p
from trnx.ops.functions import logistic as logistic
from trnx.ops.functions import lt as lt
from trnx.ops.functions import max as max
from trnx.ops.functions import min as min
from trnx.ops.functions import mul as mul
from trnx.ops.functions import ne as ne
from trnx.ops.functions import neg as neg
from trnx.ops.functions import pad as pad
from trnx.ops.functions import pow as pow
from trnx.ops.functions import reduce_and as reduce_and
from trnx.ops.functions import reduce_max as reduce_max
from trnx.ops.functions import reduce_min as reduce_min
from trnx.ops.functions import reduce_or as reduce_or
from trnx.ops.functions import reduce_prod as reduce_prod
from trnx.ops.functions import reduce_sum as reduce_sum
from trnx.ops.functions import reduce_xor as reduce_xor
from trnx.ops.functions import remainder as remainder
from trnx.ops.functions import reshape as reshape
from trnx.ops.functions import reverse as reverse
from trnx.ops.functions import round as round
from trnx.ops.functions import rsqrt as rsqrt
from trnx.ops.functions import scatter_add_along as scatter_add_along
from trnx.ops.functions import select as select
from trnx.ops.functions import shift_left as shift_left
from trnx.ops.functions import shift_right_arithmetic as shift_right_arithmetic
from trnx.ops.functions import shift_right_logical as shift_right_logical
from trnx.ops.functions import sign as sign
from trnx.ops.functions import sin as sin
from trnx.ops.functions import slice as slice
from trnx.ops.functions import sqrt as sqrt
from trnx.ops.functions import stop_gradient as stop_gradient
from trnx.ops.functions import sub as sub
from trnx.ops.functions import take as take
from trnx.ops.functions import take_along as take_along
from trnx.ops.functions import tanh as tanh
from trnx.ops.functions import threefry2x32 as threefry2x32
from trnx.ops.functions import transpose as transpose
from trnx.ops.indexed import GatherDimensionNumbers as GatherDimensionNumbers
from trnx.ops.indexed import GatherScatterMode as GatherScatterMode
from trnx.ops.indexed import ScatterDimensionNumbers as ScatterDimensionNumbers
from trnx.ops.indexed import cumlogsumexp as cumlogsumexp
from trnx.ops.indexed import cummax as cummax
from trnx.ops.indexed import cummin as cummin
from trnx.ops.indexed import cumprod as cumprod
from trnx.ops.indexed import cumsum as cumsum
from trnx.ops.indexed import dynamic_index_in_dim as dynamic_index_in_dim
from trnx.ops.indexed import dynamic_slice as dynamic_slice
from trnx.ops.indexed import dynamic_slice_in_dim as dynamic_slice_in_dim
from trnx.ops.indexed import dynamic_update_index_in_dim as dynamic_update_index_in_dim
from trnx.ops.indexed import dynamic_update_slice as dynamic_update_slice
from trnx.ops.indexed import dynamic_update_slice_in_dim as dynamic_update_slice_in_dim
from trnx.ops.indexed import gather as gather
from trnx.ops.indexed import index_in_dim as index_in_dim
from trnx.ops.indexed import index_take as index_take
from trnx.ops.indexed import scatter as scatter
from trnx.ops.indexed import scatter_add as scatter_add
from trnx.ops.indexed import scatter_max as scatter_max
from trnx.ops.indexed import scatter_min as scatter_min
from trnx.ops.indexed import scatter_mul as scatter_mul
from trnx.ops.indexed import slice_in_dim as slice_in_dim
from trnx.ops.indexed import sort as sort
from trnx.ops.indexed import sort_key_val as sort_key_val
from trnx.ops.indexed import top_k as top_k
from trnx.ops.windows import ConvDimensionNumbers as ConvDimensionNumbers
from trnx.ops.windows import conv_dimension_numbers as conv_dimension_numbers
from trnx.ops.windows import conv_general_dilated as conv_general_dilated
from trnx.ops.windows import reduce_window as reduce_window

if TYPE_CHECKING:
    from trnx.control import associative_scan as associative_scan
    from trnx.control import cond as cond
    from trnx.control import fori_loop as fori_loop
    from trnx.control import map as map
    from trnx.control import scan as scan
    from trnx.control import switch as switch
    from trnx.control import while_loop as while_loop

# Control flow needs the transforms, which are imported when they are first asked for.
_LAZY = ("associative_scan", "cond", "fori_loop", "map", "scan", "switch", "while_loop")


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'trnx.lax' has no attribute {name!r}")
    value = getattr(importlib.import_module("trnx.control"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})


_publish(globals())
