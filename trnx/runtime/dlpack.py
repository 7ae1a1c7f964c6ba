"""DLPack, both ways: the protocol's structs, reading a producer and making a capsule.

Reading asks for protocol 1.0 first, so that the read-only flag arrives, and falls back to the
legacy form. A capsule is made by NumPy over a byte-pattern view and its element type is then
written in: NumPy's deleter and capsule destructor are native code, so a consumer may release the
memory from any thread, with an exception pending or while the interpreter shuts down.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np

from trnx.core import dtypes
from trnx.core.errors import DTypeError, message

VERSION = (1, 0)
DL_CPU = 1
_HOST_DEVICES = frozenset({DL_CPU, 3, 11, 13})  # CPU, pinned by CUDA, pinned by ROCm, CUDA managed

_FLAG_READ_ONLY = 1
_FLAG_COPIED = 2

_INT, _UINT, _FLOAT, _BFLOAT, _COMPLEX, _BOOL = 0, 1, 2, 4, 5, 6
_TYPE_CODES: dict[np.dtype[Any], tuple[int, int]] = {
    dtypes.bool_: (_BOOL, 8),
    dtypes.bfloat16: (_BFLOAT, 16),
    dtypes.float8_e4m3: (8, 8),
    dtypes.float8_e4m3fn: (10, 8),
    dtypes.float8_e5m2: (12, 8),
    **{d: (_INT, 8 * d.itemsize) for d in dtypes.SIGNED},
    **{d: (_UINT, 8 * d.itemsize) for d in dtypes.UNSIGNED},
    **{d: (_FLOAT, 8 * d.itemsize) for d in (dtypes.float16, dtypes.float32, dtypes.float64)},
    **{d: (_COMPLEX, 8 * d.itemsize) for d in dtypes.COMPLEXES},
}
_DTYPES = {code: dtype for dtype, code in _TYPE_CODES.items()}


class _DLDevice(ctypes.Structure):
    _fields_ = [("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32)]


class _DLDataType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class _DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", _DLDevice),
        ("ndim", ctypes.c_int32),
        ("dtype", _DLDataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _Managed(ctypes.Structure):
    _fields_ = [
        ("dl_tensor", _DLTensor),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    ]


class _ManagedVersioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("dl_tensor", _DLTensor),
    ]


_get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_get_pointer.restype = ctypes.c_void_p
_get_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_is_valid.restype = ctypes.c_int
_is_valid.argtypes = [ctypes.py_object, ctypes.c_char_p]
_set_name = ctypes.pythonapi.PyCapsule_SetName
_set_name.restype = ctypes.c_int
_set_name.argtypes = [ctypes.py_object, ctypes.c_char_p]
_Deleter = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)

_LEGACY, _LEGACY_USED = b"dltensor", b"used_dltensor"
_VERSIONED, _VERSIONED_USED = b"dltensor_versioned", b"used_dltensor_versioned"


class ForeignMemory:
    """Owns a consumed DLPack tensor; gives it back to its producer when it goes away.

    It is pinned for good: memory that somebody else may see is never donated or updated in place.
    """

    __slots__ = ("_deleter", "_pointer", "pinned", "__weakref__")

    def __init__(self, pointer: int, deleter: int | None) -> None:
        self.pinned = True
        self._pointer = pointer
        self._deleter = deleter

    def __del__(self, call: Any = _Deleter) -> None:
        """Call the producer's deleter, which may be absent."""
        if self._deleter:
            call(self._deleter)(self._pointer)


@dataclass(frozen=True, slots=True)
class ForeignTensor:
    """A tensor of another library.

    Attributes:
        owner: keeps the memory valid.
        address: address of the first element; 0 is possible when there is no element.
        shape: sizes.
        strides: bytes per step of each axis, None for row major.
        dtype: element type.
        read_only: the producer promises that nobody writes.
    """

    owner: ForeignMemory
    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    dtype: np.dtype[Any]
    read_only: bool


def read(producer: Any) -> ForeignTensor:
    """The tensor that `producer` offers by `__dlpack__`, without a copy.

    Raises:
        TypeError: `producer` is a capsule or speaks no DLPack.
        BufferError: it lives on another device or refuses to export.
        DTypeError: an element type that trnx has not.
    """
    kind = type(producer).__name__
    if kind == "PyCapsule":
        raise TypeError(
            message(
                "from_dlpack got a DLPack capsule, which carries no device",
                None,
                "Pass the array itself instead of its capsule",
            )
        )
    if not hasattr(producer, "__dlpack__") or not hasattr(producer, "__dlpack_device__"):
        raise TypeError(
            message(
                f"from_dlpack got a {kind}, which has no __dlpack__ method",
                None,
                "Pass an array of a library that speaks DLPack, or use asarray",
            )
        )
    if getattr(producer, "requires_grad", False):
        raise BufferError(
            message(
                f"This {kind} requires grad, and its graph would be lost on the way",
                None,
                "Pass x.detach()",
            )
        )
    device_type = int(producer.__dlpack_device__()[0])
    if device_type not in _HOST_DEVICES:
        raise BufferError(
            message(
                f"This {kind} is on a device (DLPack type {device_type}) that the host cannot read",
                None,
                "Move it to host memory first, for example with x.cpu()",
            )
        )
    return _consume(_ask(producer))


def _ask(producer: Any) -> Any:
    """A capsule from `producer`: protocol 1.0 if it knows that argument, else legacy."""
    try:
        return producer.__dlpack__(max_version=VERSION)
    except TypeError as error:
        if "max_version" not in str(error):
            raise
        return producer.__dlpack__()


def _consume(capsule: Any) -> ForeignTensor:
    """Take the tensor out of a capsule, which is renamed as the protocol demands."""
    if _is_valid(capsule, _VERSIONED):
        pointer = _get_pointer(capsule, _VERSIONED)
        versioned = _ManagedVersioned.from_address(pointer)
        if versioned.major > VERSION[0]:
            raise BufferError(
                message(
                    f"The producer speaks DLPack {versioned.major}.{versioned.minor}, and trnx "
                    f"reads {VERSION[0]}.x",
                    None,
                    "Use a version of that library that can export DLPack 1",
                )
            )
        tensor, deleter = versioned.dl_tensor, versioned.deleter
        read_only = bool(versioned.flags & _FLAG_READ_ONLY)
        used = _VERSIONED_USED
    else:
        pointer = _get_pointer(capsule, _LEGACY)
        legacy = _Managed.from_address(pointer)
        tensor, deleter, read_only, used = legacy.dl_tensor, legacy.deleter, False, _LEGACY_USED
    code = (tensor.dtype.code, tensor.dtype.bits)
    dtype = _DTYPES.get(code)
    if dtype is None or tensor.dtype.lanes != 1:
        # The capsule keeps its name, so it frees the tensor itself.
        raise DTypeError(
            message(
                f"DLPack element type (code {code[0]}, {code[1]} bits, {tensor.dtype.lanes} "
                "lanes) has no counterpart in trnx",
                None,
                "Convert the array in its own library first",
            )
        )
    shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
    strides = None
    if tensor.strides:
        strides = tuple(tensor.strides[i] * dtype.itemsize for i in range(tensor.ndim))
    address = (tensor.data or 0) + tensor.byte_offset
    _set_name(capsule, used)
    owner = ForeignMemory(pointer, deleter)
    return ForeignTensor(owner, address, shape, strides, dtype, read_only)


def make_capsule(
    memory: np.ndarray[Any, Any],
    dtype: np.dtype[Any],
    *,
    versioned: bool,
    copied: bool = False,
) -> Any:
    """A DLPack capsule over `memory`.

    Args:
        memory: row-major array whose elements have the size of `dtype`; its read-only flag is
            exported when `versioned`. The legacy form cannot say read-only: pass a writable view.
        dtype: element type that the consumer sees.
        versioned: make the 1.0 form.
        copied: set the flag that says the consumer alone owns the memory.
    """
    if versioned:
        capsule = memory.__dlpack__(max_version=VERSION)
        managed: Any = _ManagedVersioned.from_address(_get_pointer(capsule, _VERSIONED))
        if copied:
            managed.flags |= _FLAG_COPIED
    else:
        capsule = memory.__dlpack__()
        managed = _Managed.from_address(_get_pointer(capsule, _LEGACY))
    tensor = managed.dl_tensor
    tensor.dtype.code, tensor.dtype.bits = _TYPE_CODES[dtype]
    return capsule
