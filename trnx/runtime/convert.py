"""Values from outside become Arrays: Python numbers and lists, NumPy arrays, DLPack producers.

The rule everywhere: value semantics. Memory that somebody else can write is copied unless the
caller opts into sharing with `copy=False`; memory that nobody can write is shared.
"""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from trnx.core import dtypes, tree
from trnx.core.avals import Aval, check_unmasked
from trnx.core.errors import DTypeError, ShapeError, UnknownTypeError, message
from trnx.runtime import dlpack
from trnx.runtime.array import Array, ArrayType, array_type, fill_from, make_array
from trnx.runtime.devices import Device, as_device
from trnx.runtime.memory import MemoryView, allocate, copy_bytes, numpy_view

_OWN_DTYPES = frozenset(dtypes.ALL_DTYPES)

# The types that Python numbers have by default go into memory without a detour.
_PACK: dict[tuple[type, np.dtype[Any]], Callable[[Any], bytes]] = {
    (bool, dtypes.bool_): struct.Struct("=?").pack,
    (int, dtypes.int32): struct.Struct("=i").pack,
    (float, dtypes.float32): struct.Struct("=f").pack,
    (float, dtypes.float64): struct.Struct("=d").pack,
}


class HostMemory:
    """Owner of an Array that shares the memory of a NumPy array; pinned for good."""

    __slots__ = ("array", "pinned", "__weakref__")

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.pinned = True
        self.array = array


def from_dlpack(x: Any, *, device: Device | str | None = None, copy: bool | None = None) -> Array:
    """An Array of any object that speaks DLPack; every dtype keeps its bits, any stride is read.

    Args:
        x: the array of the other library (not its capsule).
        device: device of the result.
        copy: None copies memory that its owner can write and shares read-only memory; True
            always copies; False shares always, and then sees what its owner writes.

    Raises:
        TypeError: `x` speaks no DLPack, or is a capsule.
        BufferError: `x` refuses, is not in host memory, requires grad, or cannot be shared.
        DTypeError: an element type that trnx has not.
    """
    if isinstance(x, Array):
        return place(x, device, copy)
    if isinstance(x, np.ndarray):
        return _from_numpy(x, None, as_device(device), copy)
    foreign = dlpack.read(x)
    aval = Aval(foreign.shape, foreign.dtype)
    kind = array_type(aval, as_device(device))
    row_major = _is_row_major(foreign.shape, foreign.strides, foreign.dtype.itemsize)
    aligned = foreign.address % foreign.dtype.itemsize == 0
    shareable = row_major and aligned and foreign.address != 0
    if copy is False and not shareable:
        raise BufferError(
            message(
                f"{aval} with byte strides {foreign.strides} cannot be shared, because arrays "
                "lie row major and aligned",
                None,
                "Leave out copy=False",
            )
        )
    if copy is False or (copy is None and foreign.read_only and shareable):
        return make_array(foreign.address, kind, foreign.owner)
    if row_major:
        nbytes = math.prod(foreign.shape) * foreign.dtype.itemsize
        block = allocate(nbytes)
        if nbytes:
            copy_bytes(block.address, foreign.address, nbytes)
        return make_array(block.address, kind, block)
    view = numpy_view(
        foreign.owner, foreign.address, foreign.shape, foreign.dtype, strides=foreign.strides
    )
    return fill_from(view, aval, kind.device)


def from_host(
    x: Any,
    dtype: Any = None,
    device: Device | str | None = None,
    copy: bool | None = None,
) -> Array:
    """An Array of a value outside trnx.

    Args:
        x: Python number or nested list of them, NumPy array or scalar, DLPack producer, buffer,
            or Array (whose dtype must then be the one asked for).
        dtype: element type; None keeps that of arrays and takes the 32-bit default for Python
            numbers.
        device: device of the result, None for the default.
        copy: as for :func:`from_dlpack`.

    Raises:
        UnknownTypeError: `x` is nothing of the kind.
        DTypeError: an element type that trnx has not.
        IntegerRangeError: a Python int does not fit.
        ShapeError: a ragged list.
    """
    wanted = None if dtype is None else dtypes.as_dtype(dtype)
    if isinstance(x, Array):
        if wanted is not None and wanted != x.dtype:
            raise DTypeError(
                message(
                    f"An Array of {x.aval} was to become {dtypes.short_name(wanted)}",
                    None,
                    "Use x.astype(dtype)",
                )
            )
        return place(x, device, copy)
    target = as_device(device)
    if isinstance(x, np.ndarray):
        return _from_numpy(x, wanted, target, copy)
    if isinstance(x, np.generic):
        if wanted is None and x.dtype in _OWN_DTYPES:
            return _from_bytes(x.tobytes(), _scalar_type(x.dtype, False, target))
        return _from_numpy(np.asarray(x), wanted, target, True)
    if isinstance(x, bool | int | float | complex):
        return scalar_array(x, dtypes.result_type(x)[0] if wanted is None else wanted, target)
    if isinstance(x, list | tuple):
        return _from_list(x, wanted, target)
    if hasattr(x, "__dlpack__"):
        array = from_dlpack(x, device=target, copy=copy)
        if wanted is None or wanted == array.dtype:
            return array
        return fill_from(array._view(), Aval(array.shape, wanted), target)
    if hasattr(x, "__array__") or hasattr(x, "__array_interface__") or _has_buffer(x):
        return _from_numpy(np.asarray(x), wanted, target, copy)
    cls = type(x)
    raise UnknownTypeError(
        message(
            f"A value of type {cls.__module__}.{cls.__qualname__} cannot become an array",
            None,
            "Pass numbers, nested lists of numbers or an array",
        )
    )


def scalar_array(
    x: bool | int | float | complex, dtype: np.dtype[Any], device: Device, weak: bool = False
) -> Array:
    """An Array without axes that holds a Python number."""
    pack = _PACK.get((type(x), dtype))
    if pack is not None:
        try:
            content = pack(x)
        except (OverflowError, struct.error):  # an infinity, or an error that the code below words
            pass
        else:
            return _from_bytes(content, _scalar_type(dtype, weak, device))
    if dtypes.is_integer(dtype):
        if isinstance(x, int):
            dtypes.check_python_int(int(x), dtype)
        elif not float(np.real(x)).is_integer():
            raise DTypeError(
                message(
                    f"{x!r} is not an integer and was to become {dtypes.short_name(dtype)}",
                    None,
                    "Round it first, or choose a float dtype",
                )
            )
    with np.errstate(over="ignore"):  # a number above the range becomes infinite, as in NumPy
        return fill_from(np.asarray(x), Aval((), dtype, weak), device)


@functools.cache
def _scalar_type(dtype: np.dtype[Any], weak: bool, device: Device) -> ArrayType:
    return array_type(Aval((), dtype, weak), device)


def _from_bytes(content: bytes, kind: ArrayType) -> Array:
    block = allocate(len(content))
    copy_bytes(block.address, content, len(content))
    return make_array(block.address, kind, block)


def device_put(x: Any, device: Device | str | None = None) -> Any:
    """A tree of values as a tree of Arrays on a device.

    Args:
        x: tree whose leaves :func:`from_host` takes.
        device: None leaves Arrays where they are and puts other values on the default device.
    """
    return tree.map(lambda leaf: from_host(leaf, device=device), x)


def place(x: Array, device: Device | str | None, copy: bool | None) -> Array:
    """`x` on a device: a change of tag over the same memory, or a copy when asked for."""
    target = x.device if device is None else as_device(device)
    kind = array_type(x.aval, target)
    if copy:
        block = allocate(x.nbytes)
        copy_bytes(block.address, x._address, x.nbytes)
        return make_array(block.address, kind, block)
    if target == x.device:
        return x
    x._owner.pinned = True
    return make_array(x._address, kind, x._owner)


def _from_numpy(
    x: np.ndarray[Any, Any], wanted: np.dtype[Any] | None, device: Device, copy: bool | None
) -> Array:
    check_unmasked(x)
    own = dtypes.as_dtype(x.dtype)
    aval = Aval(x.shape, own if wanted is None else wanted)
    shareable = (
        aval.dtype == x.dtype and x.dtype.isnative and x.flags.c_contiguous and x.flags.aligned
    )
    if copy is False and not shareable:
        raise ValueError(
            message(
                f"This NumPy array ({x.dtype}, strides {x.strides}) cannot be shared as {aval}, "
                "because arrays lie row major and aligned",
                None,
                "Leave out copy=False",
            )
        )
    if copy is False or (copy is None and shareable and _nobody_writes(x)):
        address = x.__array_interface__["data"][0]
        return make_array(address, array_type(aval, device), HostMemory(x))
    return fill_from(x, aval, device)


def _nobody_writes(x: np.ndarray[Any, Any]) -> bool:
    """True if neither this view nor anything under it can be written.

    A read-only view of writable memory, such as `np.broadcast_to` gives, does not count.
    """
    base: Any = x
    while isinstance(base, np.ndarray):
        if base.flags.writeable:
            return False
        base = base.base
    if isinstance(base, memoryview):
        base = base.obj
    return base is None or isinstance(base, bytes | MemoryView)


def _has_buffer(x: Any) -> bool:
    try:
        memoryview(x).release()
    except TypeError:
        return False
    return True


def _is_row_major(shape: tuple[int, ...], strides: tuple[int, ...] | None, itemsize: int) -> bool:
    """True if the elements lie dense and row major; strides of axes of size 1 never matter."""
    if strides is None or 0 in shape:
        return True
    expected = itemsize
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


def _list_shape(x: Any) -> tuple[int, ...]:
    """Shape of a nested list; ShapeError when it is ragged."""
    if isinstance(x, list | tuple):
        if not x:
            return (0,)
        first = _list_shape(x[0])
        for i, element in enumerate(x):
            other = _list_shape(element)
            if other != first:
                raise ShapeError(
                    message(
                        f"A nested list is ragged: element 0 has shape {first} and element {i} "
                        f"has {other}",
                        None,
                        "Make all of them equally long",
                    )
                )
        return (len(x), *first)
    return tuple(getattr(x, "shape", ()))


def _leaves(x: Any) -> list[Any]:
    if isinstance(x, list | tuple):
        return [leaf for element in x for leaf in _leaves(element)]
    return [x]


def _from_list(x: Any, wanted: np.dtype[Any] | None, device: Device) -> Array:
    shape = _list_shape(x)
    leaves = _leaves(x)
    for leaf in leaves:
        if not isinstance(leaf, bool | int | float | complex | np.generic | np.ndarray | Array):
            cls = type(leaf)
            raise UnknownTypeError(
                message(
                    f"A list holds a value of type {cls.__module__}.{cls.__qualname__}, "
                    "which is no number",
                    None,
                    "Pass nested lists of numbers, or stack arrays with trnx.numpy.stack",
                )
            )
    if wanted is None:
        wanted = dtypes.result_type(*leaves)[0] if leaves else dtypes.float32
    elif dtypes.is_integer(wanted):
        for leaf in leaves:
            if isinstance(leaf, int) and not isinstance(leaf, bool):
                dtypes.check_python_int(leaf, wanted)
    values = [leaf._view() if isinstance(leaf, Array) else leaf for leaf in leaves]
    if all(not isinstance(value, np.ndarray) for value in values):
        flat = np.array(values, dtype=wanted)
    else:
        flat = np.stack([np.asarray(value, dtype=wanted) for value in values])
    return fill_from(flat.reshape(shape), Aval(shape, wanted), device)
