"""Array functions with NumPy's names and meaning, on trnx arrays and traced values.

Differences to NumPy: defaults are 32-bit, arrays are immutable (``x.at[i].set(v)``), promotion
follows the Array API with weak Python numbers, dynamic indices out of range clamp on reading and
drop on writing.
"""

from __future__ import annotations

import math

import ml_dtypes as _ml_dtypes
import numpy as _np

from trnx.core import Tracer as _Tracer
from trnx.core import dtypes as _dtypes
from trnx.core.dtypes import promote_types as promote_types
from trnx.numpy import fft as fft
from trnx.numpy import linalg as linalg
from trnx.numpy._public import publish as _publish
from trnx.numpy.accumulation import cumprod as cumprod
from trnx.numpy.accumulation import cumsum as cumsum
from trnx.numpy.accumulation import cumulative_prod as cumulative_prod
from trnx.numpy.accumulation import cumulative_sum as cumulative_sum
from trnx.numpy.accumulation import diff as diff
from trnx.numpy.accumulation import nancumprod as nancumprod
from trnx.numpy.accumulation import nancumsum as nancumsum
from trnx.numpy.contraction import dot as dot
from trnx.numpy.contraction import einsum as einsum
from trnx.numpy.contraction import matmul as matmul
from trnx.numpy.contraction import outer as outer
from trnx.numpy.contraction import tensordot as tensordot
from trnx.numpy.contraction import vecdot as vecdot
from trnx.numpy.counting import argwhere as argwhere
from trnx.numpy.counting import bincount as bincount
from trnx.numpy.counting import digitize as digitize
from trnx.numpy.counting import flatnonzero as flatnonzero
from trnx.numpy.counting import histogram as histogram
from trnx.numpy.counting import histogram_bin_edges as histogram_bin_edges
from trnx.numpy.counting import nonzero as nonzero
from trnx.numpy.creation import arange as arange
from trnx.numpy.creation import array as array
from trnx.numpy.creation import asarray as asarray
from trnx.numpy.creation import astype as astype
from trnx.numpy.creation import empty as empty
from trnx.numpy.creation import empty_like as empty_like
from trnx.numpy.creation import eye as eye
from trnx.numpy.creation import full as full
from trnx.numpy.creation import full_like as full_like
from trnx.numpy.creation import identity as identity
from trnx.numpy.creation import linspace as linspace
from trnx.numpy.creation import ones as ones
from trnx.numpy.creation import ones_like as ones_like
from trnx.numpy.creation import tri as tri
from trnx.numpy.creation import tril as tril
from trnx.numpy.creation import triu as triu
from trnx.numpy.creation import zeros as zeros
from trnx.numpy.creation import zeros_like as zeros_like
from trnx.numpy.elementwise import abs as abs
from trnx.numpy.elementwise import absolute as absolute
from trnx.numpy.elementwise import add as add
from trnx.numpy.elementwise import bitwise_and as bitwise_and
from trnx.numpy.elementwise import bitwise_invert as bitwise_invert
from trnx.numpy.elementwise import bitwise_left_shift as bitwise_left_shift
from trnx.numpy.elementwise import bitwise_not as bitwise_not
from trnx.numpy.elementwise import bitwise_or as bitwise_or
from trnx.numpy.elementwise import bitwise_right_shift as bitwise_right_shift
from trnx.numpy.elementwise import bitwise_xor as bitwise_xor
from trnx.numpy.elementwise import ceil as ceil
from trnx.numpy.elementwise import clip as clip
from trnx.numpy.elementwise import cos as cos
from trnx.numpy.elementwise import cosh as cosh
from trnx.numpy.elementwise import degrees as degrees
from trnx.numpy.elementwise import divide as divide
from trnx.numpy.elementwise import divmod as divmod
from trnx.numpy.elementwise import equal as equal
from trnx.numpy.elementwise import exp as exp
from trnx.numpy.elementwise import exp2 as exp2
from trnx.numpy.elementwise import expm1 as expm1
from trnx.numpy.elementwise import floor as floor
from trnx.numpy.elementwise import floor_divide as floor_divide
from trnx.numpy.elementwise import greater as greater
from trnx.numpy.elementwise import greater_equal as greater_equal
from trnx.numpy.elementwise import invert as invert
from trnx.numpy.elementwise import isfinite as isfinite
from trnx.numpy.elementwise import isinf as isinf
from trnx.numpy.elementwise import isnan as isnan
from trnx.numpy.elementwise import left_shift as left_shift
from trnx.numpy.elementwise import less as less
from trnx.numpy.elementwise import less_equal as less_equal
from trnx.numpy.elementwise import log as log
from trnx.numpy.elementwise import log1p as log1p
from trnx.numpy.elementwise import log2 as log2
from trnx.numpy.elementwise import log10 as log10
from trnx.numpy.elementwise import logaddexp as logaddexp
from trnx.numpy.elementwise import logical_and as logical_and
from trnx.numpy.elementwise import logical_not as logical_not
from trnx.numpy.elementwise import logical_or as logical_or
from trnx.numpy.elementwise import logical_xor as logical_xor
from trnx.numpy.elementwise import maximum as maximum
from trnx.numpy.elementwise import minimum as minimum
from trnx.numpy.elementwise import mod as mod
from trnx.numpy.elementwise import multiply as multiply
from trnx.numpy.elementwise import negative as negative
from trnx.numpy.elementwise import not_equal as not_equal
from trnx.numpy.elementwise import positive as positive
from trnx.numpy.elementwise import power as power
from trnx.numpy.elementwise import radians as radians
from trnx.numpy.elementwise import reciprocal as reciprocal
from trnx.numpy.elementwise import remainder as remainder
from trnx.numpy.elementwise import right_shift as right_shift
from trnx.numpy.elementwise import rint as rint
from trnx.numpy.elementwise import round as round
from trnx.numpy.elementwise import sign as sign
from trnx.numpy.elementwise import sin as sin
from trnx.numpy.elementwise import sinh as sinh
from trnx.numpy.elementwise import sqrt as sqrt
from trnx.numpy.elementwise import square as square
from trnx.numpy.elementwise import subtract as subtract
from trnx.numpy.elementwise import tan as tan
from trnx.numpy.elementwise import tanh as tanh
from trnx.numpy.elementwise import true_divide as true_divide
from trnx.numpy.elementwise import trunc as trunc
from trnx.numpy.elementwise import where as where
from trnx.numpy.indexing import take as take
from trnx.numpy.indexing import take_along_axis as take_along_axis
from trnx.numpy.manipulation import atleast_1d as atleast_1d
from trnx.numpy.manipulation import atleast_2d as atleast_2d
from trnx.numpy.manipulation import broadcast_arrays as broadcast_arrays
from trnx.numpy.manipulation import broadcast_to as broadcast_to
from trnx.numpy.manipulation import concat as concat
from trnx.numpy.manipulation import concatenate as concatenate
from trnx.numpy.manipulation import expand_dims as expand_dims
from trnx.numpy.manipulation import flip as flip
from trnx.numpy.manipulation import hstack as hstack
from trnx.numpy.manipulation import matrix_transpose as matrix_transpose
from trnx.numpy.manipulation import meshgrid as meshgrid
from trnx.numpy.manipulation import moveaxis as moveaxis
from trnx.numpy.manipulation import ndim as ndim
from trnx.numpy.manipulation import pad as pad
from trnx.numpy.manipulation import permute_dims as permute_dims
from trnx.numpy.manipulation import ravel as ravel
from trnx.numpy.manipulation import repeat as repeat
from trnx.numpy.manipulation import reshape as reshape
from trnx.numpy.manipulation import roll as roll
from trnx.numpy.manipulation import shape as shape
from trnx.numpy.manipulation import size as size
from trnx.numpy.manipulation import split as split
from trnx.numpy.manipulation import squeeze as squeeze
from trnx.numpy.manipulation import stack as stack
from trnx.numpy.manipulation import swapaxes as swapaxes
from trnx.numpy.manipulation import tile as tile
from trnx.numpy.manipulation import transpose as transpose
from trnx.numpy.manipulation import unstack as unstack
from trnx.numpy.manipulation import vstack as vstack
from trnx.numpy.operators import install_operators as install_operators
from trnx.numpy.reductions import all as all
from trnx.numpy.reductions import amax as amax
from trnx.numpy.reductions import amin as amin
from trnx.numpy.reductions import any as any
from trnx.numpy.reductions import argmax as argmax
from trnx.numpy.reductions import argmin as argmin
from trnx.numpy.reductions import average as average
from trnx.numpy.reductions import count_nonzero as count_nonzero
from trnx.numpy.reductions import logsumexp as logsumexp
from trnx.numpy.reductions import max as max
from trnx.numpy.reductions import mean as mean
from trnx.numpy.reductions import min as min
from trnx.numpy.reductions import prod as prod
from trnx.numpy.reductions import ptp as ptp
from trnx.numpy.reductions import std as std
from trnx.numpy.reductions import sum as sum
from trnx.numpy.reductions import var as var
from trnx.numpy.searching import interp as interp
from trnx.numpy.searching import searchsorted as searchsorted
from trnx.numpy.sorting import argpartition as argpartition
from trnx.numpy.sorting import argsort as argsort
from trnx.numpy.sorting import lexsort as lexsort
from trnx.numpy.sorting import median as median
from trnx.numpy.sorting import nanmedian as nanmedian
from trnx.numpy.sorting import nanpercentile as nanpercentile
from trnx.numpy.sorting import nanquantile as nanquantile
from trnx.numpy.sorting import partition as partition
from trnx.numpy.sorting import percentile as percentile
from trnx.numpy.sorting import put_along_axis as put_along_axis
from trnx.numpy.sorting import quantile as quantile
from trnx.numpy.sorting import sort as sort
from trnx.numpy.sorting import unique as unique
from trnx.numpy.sorting import unique_values as unique_values
from trnx.runtime.array import Array as ndarray
from trnx.runtime.convert import from_dlpack as from_dlpack

bool_ = _np.bool_
int8, int16, int32, int64 = _np.int8, _np.int16, _np.int32, _np.int64
uint8, uint16, uint32, uint64 = _np.uint8, _np.uint16, _np.uint32, _np.uint64
float16, float32, float64 = _np.float16, _np.float32, _np.float64
complex64, complex128 = _np.complex64, _np.complex128
bfloat16 = _ml_dtypes.bfloat16
float8_e4m3, float8_e4m3fn = _ml_dtypes.float8_e4m3, _ml_dtypes.float8_e4m3fn
float8_e5m2 = _ml_dtypes.float8_e5m2

e, inf, nan, newaxis, pi = math.e, math.inf, math.nan, None, math.pi


def result_type(*operands: object) -> _np.dtype:
    """The dtype that the operands (arrays, dtypes, Python numbers) promote to."""
    return _dtypes.result_type(*operands)[0]


for _cls in (_Tracer, ndarray):
    install_operators(_cls)
_publish(globals())
