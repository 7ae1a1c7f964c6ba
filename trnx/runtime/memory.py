"""Blocks of host memory for arrays: 64-byte aligned, one per array, recycled through a pool.

Fresh pages cost more than most programs (first touch of 16 MB takes several times as long as
writing it again), so freed blocks are kept per size class and handed out again. Sizes are rounded
up to classes of at most one eighth waste. Large blocks ask for huge pages: programs that stream
through them otherwise wait for address translation, above all in virtual machines.
"""

from __future__ import annotations

import ctypes
import mmap
import threading
from typing import Any, cast

import numpy as np

from trnx.core.errors import message

ALIGNMENT = 64
"""Bytes; a cache line and the widest vector register."""

POOL_LIMIT = 1 << 29
"""Bytes of freed memory that the pool keeps at most."""

_LARGEST = 1 << 47  # a process has no larger range of addresses, and ctypes would cut the number
_HUGE_PAGE = 1 << 21
_HUGE = 1 << 22  # from this size on huge pages are asked for
_SMALL = 1 << 12
_KEEP_SMALL = 256

_libc = ctypes.CDLL(None)
_allocate = _libc.aligned_alloc
_allocate.restype = ctypes.c_void_p
_allocate.argtypes = [ctypes.c_size_t, ctypes.c_size_t]
_release = _libc.free
_release.restype = None
_release.argtypes = [ctypes.c_void_p]
_memmove = ctypes.memmove
_advise = getattr(_libc, "madvise", None)
if _advise is not None:
    _advise.restype = ctypes.c_int
    _advise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_ADVICE: int | None = getattr(mmap, "MADV_HUGEPAGE", None)  # Linux has it

_pool: dict[int, list[int]] = {}
_pool_lock = threading.RLock()


def size_class(nbytes: int) -> int:
    """Bytes that a block of `nbytes` really takes: a multiple of 64, at most 1/8 larger."""
    if nbytes <= _SMALL:
        return max(ALIGNMENT, (nbytes + ALIGNMENT - 1) & -ALIGNMENT)
    step = 1 << (nbytes.bit_length() - 4)
    return (nbytes + step - 1) & -step


class Block:
    """A block of own memory; freed when the last array or view that holds it goes away.

    Attributes:
        address: address of the first byte, a multiple of 64.
        capacity: bytes, at least what was asked for.
        pinned: True once somebody else may see the memory (an exported view, a second array).
            A pinned block is never donated, reused or updated in place.
    """

    __slots__ = ("address", "capacity", "pinned", "__weakref__")

    address: int
    capacity: int
    pinned: bool

    def __del__(
        self,
        # Bound here because module globals may be gone when the interpreter shuts down.
        pool: dict[int, list[int]] = _pool,
        release: Any = _release,
        small: int = _SMALL,
        keep: int = _KEEP_SMALL,
    ) -> None:
        """Hand the memory back to the pool."""
        capacity = self.capacity
        if capacity > small:
            _keep_large(capacity, self.address)
            return
        freed = pool[capacity]
        if len(freed) < keep:
            freed.append(self.address)
        else:
            release(self.address)


def _keep_large(
    capacity: int,
    address: int,
    pool: dict[int, list[int]] = _pool,
    lock: Any = _pool_lock,
    release: Any = _release,
    limit: int = POOL_LIMIT,
) -> None:
    """Keep a large block if the pool stays within its limit, else free it."""
    with lock:
        kept = sum(size * len(freed) for size, freed in pool.items())
        if kept + capacity <= limit:
            pool[capacity].append(address)
            return
    release(address)


def allocate(nbytes: int) -> Block:
    """A new block of at least `nbytes` bytes with undefined contents.

    Raises:
        MemoryError: the system has no memory of that size.
    """
    capacity = size_class(nbytes)
    if capacity > _LARGEST:
        raise _no_memory(nbytes)
    freed = _pool.get(capacity)
    if freed is None:
        freed = _pool.setdefault(capacity, [])
    try:
        address = freed.pop()
    except IndexError:
        address = _from_system(nbytes, capacity)
    block = Block()
    block.address = address
    block.capacity = capacity
    block.pinned = False
    return block


def _from_system(nbytes: int, capacity: int) -> int:
    """Memory from the system, if need be after the pool has given back its own."""
    address = _fresh(capacity)
    if address is None:
        trim()
        address = _fresh(capacity)
    if address is None:
        raise _no_memory(nbytes) from None
    return address


def _fresh(capacity: int) -> int | None:
    """Memory from the system, None when it has none."""
    if capacity < _HUGE or _ADVICE is None or _advise is None:
        return cast("int | None", _allocate(ALIGNMENT, capacity))
    address = cast("int | None", _allocate(_HUGE_PAGE, capacity))
    if address is not None:
        # A refusal (a kernel without huge pages) leaves ordinary pages, which are as good.
        _advise(address, capacity, _ADVICE)
    return address


def _no_memory(nbytes: int) -> MemoryError:
    cause = f"There is no memory for an array of {nbytes:,} bytes"
    return MemoryError(message(cause, None, "Free arrays, or use smaller ones"))


def trim() -> int:
    """Give the pooled memory back to the system; returns the number of bytes."""
    given_back = 0
    for capacity, freed in list(_pool.items()):
        while freed:
            try:
                address = freed.pop()
            except IndexError:  # another thread took the last one
                break
            _release(address)
            given_back += capacity
    return given_back


def pooled_bytes() -> int:
    """Bytes of freed memory that wait in the pool."""
    return sum(size * len(freed) for size, freed in list(_pool.items()))


def copy_bytes(destination: int, source: int | bytes, nbytes: int) -> None:
    """Copy `nbytes` bytes to an address, from another one (they may overlap) or a bytes object."""
    _memmove(destination, source, nbytes)


class MemoryView:
    """Lets NumPy see memory by address and keeps its owner alive (array interface, version 3).

    Args:
        owner: object that keeps the memory valid.
        address: address of the first element.
        shape: sizes of the view.
        typestr: NumPy type text such as `|u1`.
        read_only: whether NumPy must refuse to write; it cannot be switched back on.
        strides: bytes from one element to the next per axis; None is row major.
    """

    __slots__ = ("__array_interface__", "owner")

    def __init__(
        self,
        owner: object,
        address: int,
        shape: tuple[int, ...],
        typestr: str,
        read_only: bool,
        strides: tuple[int, ...] | None = None,
    ) -> None:
        self.owner = owner
        self.__array_interface__ = {
            "version": 3,
            "shape": shape,
            "typestr": typestr,
            "data": (address, read_only),
            "strides": strides,
        }


# Types that NumPy's array interface has no name for are seen as bit patterns of the same size.
_BITS = {1: "|u1", 2: "<u2", 4: "<u4", 8: "<u8", 16: "<c16"}


def numpy_view(
    owner: object,
    address: int,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    read_only: bool = True,
    strides: tuple[int, ...] | None = None,
) -> np.ndarray[Any, Any]:
    """A NumPy array over memory by address, without a copy; it keeps `owner` alive."""
    view = np.asarray(MemoryView(owner, address, shape, _BITS[dtype.itemsize], read_only, strides))
    return view.view(dtype)
