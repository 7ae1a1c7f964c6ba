"""`Array`: an immutable array that holds an address, a type and the owner of its memory.

The class knows memory, Python scalars, other libraries' protocols and how to show itself. Its
operators and methods (`+`, `x.sum()`, `x[i]`) are array functions and are installed by `trnx.numpy`
through :func:`install_operators`.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

import numpy as np

from trnx.core import dtypes
from trnx.core.avals import Aval, make_aval, register_array_type, static_size
from trnx.core.errors import TrnxError, message
from trnx.runtime import dlpack
from trnx.runtime.devices import Device, as_device
from trnx.runtime.memory import Block, allocate, copy_bytes, numpy_view


class DonatedError(TrnxError, RuntimeError):
    """An array was used after its memory was given away."""


class ArrayType:
    """Shape, dtype and device of an array: one object for all equal ones (:func:`array_type`).

    It is compared and hashed by identity, so that a call finds its executable without comparing
    shapes.
    """

    __slots__ = ("aval", "device")

    def __init__(self, aval: Aval, device: Device) -> None:
        self.aval = aval
        self.device = device

    def __repr__(self) -> str:
        return f"ArrayType({self.aval} on {self.device})"


_types: dict[tuple[Aval, Device], ArrayType] = {}


def array_type(aval: Aval, device: Device) -> ArrayType:
    """The one ArrayType for a static type and a device."""
    key = (aval, device)
    found = _types.get(key)
    return found if found is not None else _types.setdefault(key, ArrayType(aval, device))


class Array:
    """An n-dimensional, row-major, immutable array.

    Make one with `trnx.numpy.asarray` and its kin. NumPy, torch and jax read it without a copy
    through `__array__` and DLPack; NumPy's view is read-only.
    """

    __slots__ = ("_address", "_owner", "_type", "__weakref__")

    _address: int
    _owner: Any
    _type: ArrayType

    # NumPy leaves `numpy_array + x` to us; `np.sin(x)` reads the view and gives a NumPy array.
    __array_priority__ = 1000

    # ---- type
    @property
    def address(self) -> int:
        """Address of the first element."""
        return self._address

    @property
    def aval(self) -> Aval:
        """Shape and dtype."""
        return self._type.aval

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes."""
        return self._type.aval.shape  # type: ignore[return-value]

    @property
    def dtype(self) -> np.dtype[Any]:
        """Element type."""
        return self._type.aval.dtype

    @property
    def weak(self) -> bool:
        """True for a result of Python scalars alone: promotion lets it give way."""
        return self._type.aval.weak

    @property
    def device(self) -> Device:
        """The device whose programs take this array."""
        return self._type.device

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self._type.aval.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return self._type.aval.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.size * self.itemsize

    # ---- life
    def __init__(self) -> None:
        raise TypeError(
            message("Array cannot be called", None, "Use trnx.numpy.asarray(values, dtype=...)")
        )

    def __getattr__(self, name: str) -> NoReturn:
        # Reached only when a lookup failed: an unknown attribute, or a slot that donation emptied.
        if name in ("_address", "_owner"):
            raise DonatedError(
                message(
                    f"This {self._type.aval} array was donated to a call and its memory is gone",
                    None,
                    "Use the result of that call, or leave the argument out of donate_argnums",
                )
            )
        raise AttributeError(f"'Array' object has no attribute {name!r}")

    def __setitem__(self, index: object, value: object) -> NoReturn:
        raise TypeError(
            message(
                "Arrays are immutable and cannot be assigned to",
                None,
                "Make a new one: x = x.at[index].set(value)",
            )
        )

    def is_donated(self) -> bool:
        """True once the memory was given away by `donate_argnums`."""
        try:
            object.__getattribute__(self, "_address")
        except AttributeError:
            return True
        return False

    def __hash__(self) -> int:
        raise TypeError(
            message(
                f"An array ({self.aval}) cannot be hashed, because == compares element by element",
                None,
                "Use a number of it (x.item()) or id(x) as the key",
            )
        )

    def __copy__(self) -> Array:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Array:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        name = dtypes.short_name(self.dtype)
        content = self._view().tobytes()
        return _restore, (name, self.shape, self.weak, self._type.device.kind, content)

    # ---- contents
    def _view(self) -> np.ndarray[Any, Any]:
        """A read-only NumPy view that must not outlive this call's caller."""
        return numpy_view(self._owner, self._address, self.shape, self._type.aval.dtype)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        """NumPy's view: read-only and without a copy unless one is asked for or needed."""
        view = self._view()
        wanted = view.dtype if dtype is None else np.dtype(dtype)
        if wanted != view.dtype:
            if copy is False:
                raise ValueError(
                    message(
                        f"{self._type.aval} cannot be seen as {wanted} without a copy",
                        None,
                        "Leave out copy=False",
                    )
                )
            return view.astype(wanted)
        if copy:
            return view.copy()
        self._owner.pinned = True
        return view

    def __dlpack_device__(self) -> tuple[int, int]:
        """The memory is host memory: (kDLCPU, 0)."""
        return (dlpack.DL_CPU, 0)

    def __dlpack__(
        self,
        *,
        stream: object = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """A DLPack capsule.

        A consumer that asks for version 1 or later receives the versioned form with the read-only
        flag; one that does not ask receives the legacy form, which cannot say so, and must not
        write. `copy=True` gives memory of its own, which it may write.

        Raises:
            BufferError: another device than host memory, or a stream, is asked for.
        """
        if dl_device is not None and tuple(dl_device) != self.__dlpack_device__():
            raise BufferError(
                message(
                    f"An array in host memory cannot be exported to DLPack device {dl_device}",
                    None,
                    "Leave out dl_device and let the consumer copy",
                )
            )
        if stream is not None:
            raise BufferError(
                message("Host memory has no streams", None, "Leave out the stream argument")
            )
        versioned = max_version is not None and max_version[0] >= dlpack.VERSION[0]
        if copy:
            block = allocate(self.nbytes)
            copy_bytes(block.address, self._address, self.nbytes)
            own = numpy_view(block, block.address, self.shape, _bits(self.dtype), read_only=False)
            return dlpack.make_capsule(own, self.dtype, versioned=versioned, copied=True)
        self._owner.pinned = True
        view = numpy_view(
            self._owner, self._address, self.shape, _bits(self.dtype), read_only=versioned
        )
        return dlpack.make_capsule(view, self.dtype, versioned=versioned)

    def item(self, *index: int) -> Any:
        """The one element as a Python number; `index` picks it in a larger array.

        Raises:
            ValueError: there is not exactly one element and no index.
        """
        if not index and self.size != 1:
            raise ValueError(
                message(
                    f"item() needs an array of one element and this is {self._type.aval}",
                    None,
                    "Pick one element first, for example x[0].item()",
                )
            )
        return self._view().item(*index)

    def tolist(self) -> Any:
        """Nested lists of Python numbers."""
        return self._view().tolist()

    def _scalar(self, kind: str) -> Any:
        if self.size != 1:
            raise TypeError(
                message(
                    f"{kind}() needs an array of one element and this is {self._type.aval}",
                    None,
                    "Pick one element or reduce the array first",
                )
            )
        return self._view().item()

    def __int__(self) -> int:
        return int(self._scalar("int"))

    def __float__(self) -> float:
        return float(self._scalar("float"))

    def __complex__(self) -> complex:
        return complex(self._scalar("complex"))

    def __index__(self) -> int:
        if not dtypes.is_integer(self.dtype) or self.ndim != 0:
            raise TypeError(
                message(
                    f"{self._type.aval} cannot be used as an index or a size",
                    None,
                    "Use an integer array without axes, or int(x)",
                )
            )
        return int(self._view().item())

    def __bool__(self) -> bool:
        if self.size != 1:
            raise ValueError(
                message(
                    f"The truth value of {self._type.aval} is ambiguous",
                    None,
                    "Use x.any() or x.all()",
                )
            )
        return bool(self._view().item())

    def __len__(self) -> int:
        if self.ndim == 0:
            raise TypeError(message("An array without axes has no len()", None, "Use x.size"))
        return self.shape[0]

    def __iter__(self) -> Iterator[Array]:
        if self.ndim == 0:
            raise TypeError(
                message("An array without axes cannot be iterated", None, "Use x.item()")
            )
        return (self._row(i) for i in range(self.shape[0]))

    def _row(self, i: int) -> Array:
        """Row `i` of the first axis, sharing this array's memory."""
        shape = self.shape[1:]
        kind = array_type(Aval(shape, self.dtype, self.weak), self.device)
        step = math.prod(shape) * self.itemsize
        self._owner.pinned = True
        return make_array(self._address + i * step, kind, self._owner)

    # ---- display
    def __repr__(self) -> str:
        if self.is_donated():
            return f"Array({self._type.aval}, donated)"
        tail = f", dtype={self.dtype.name}" + (
            "" if self._type.device.kind == "neuron" else ", device=cpu"
        )
        if 0 in self.shape:
            return f"Array([], shape={self.shape}{tail})"
        return f"Array({np.array2string(self._view(), separator=', ', prefix='Array(')}{tail})"

    def __str__(self) -> str:
        return repr(self) if self.is_donated() else str(self._view())

    def __format__(self, spec: str) -> str:
        return format(self._view().item() if self.ndim == 0 else str(self), spec)

    def _repr_html_(self) -> str:
        """The notebook's view: type, device and bytes, then values as a table."""
        head = f"<b>Array</b> {html.escape(str(self.aval))} · {self.device} · {self.nbytes:,} B"
        if self.is_donated():
            return f"<div>{head} · donated</div>"
        if self.ndim not in (1, 2) or 0 in self.shape:
            body = f"<pre>{html.escape(str(self._view()))}</pre>"
        else:
            body = _html_table(self._view())
        return f"<div>{head}{body}</div>"


def make_array(address: int, kind: ArrayType, owner: Any) -> Array:
    """An Array over existing memory.

    Args:
        address: address of the first element; the elements lie row major.
        kind: its type and device.
        owner: keeps the memory alive; has a `pinned` attribute.
    """
    array = _new(Array)
    array._address = address
    array._type = kind
    array._owner = owner
    return array


_new = object.__new__


def hold(array: Array) -> Array:
    """A handle of its own on the memory of `array`, valid also after `array` was donated."""
    array._owner.pinned = True
    return make_array(array._address, array._type, array._owner)


def donate(array: Array) -> Block:
    """Take the memory of `array` away from it; any later use of it raises DonatedError.

    Only for blocks that are not pinned.
    """
    block: Block = array._owner
    del array._address
    del array._owner
    return block


def empty(aval: Aval, device: Device) -> Array:
    """An Array with a block of its own and undefined contents; `aval` must be static."""
    block = allocate(static_size(aval.shape) * aval.dtype.itemsize)
    return make_array(block.address, array_type(aval, device), block)


def fill_from(values: np.ndarray[Any, Any], aval: Aval, device: Device) -> Array:
    """A new Array with the contents of a NumPy array of the same shape, any strides."""
    array = empty(aval, device)
    shape, dtype = array.shape, array.dtype
    target = numpy_view(array._owner, array._address, shape, dtype, read_only=False)
    np.copyto(target, values, casting="unsafe")
    return array


def install_operators(methods: Mapping[str, Any]) -> None:
    """Give `Array` these operators, methods and properties; `trnx.numpy` calls this at import."""
    for name, method in methods.items():
        setattr(Array, name, method)


def _bits(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """A dtype of the same size that NumPy can export by DLPack."""
    if dtype.itemsize <= 2 and dtype.kind not in "biu":
        return dtypes.uint8 if dtype.itemsize == 1 else dtypes.uint16
    return dtype


def _restore(name: str, shape: tuple[int, ...], weak: bool, kind: str, content: bytes) -> Array:
    """Rebuild a pickled Array."""
    dtype = dtypes.from_short_name(name)
    values = np.frombuffer(content, dtype=dtype).reshape(shape)
    return fill_from(values, make_aval(shape, dtype, weak), as_device(kind))


_TABLE_LIMIT = 8


def _html_table(view: np.ndarray[Any, Any]) -> str:
    """A table of at most 8 x 8 values with an ellipsis where values are left out."""
    rows = view.reshape(1, -1) if view.ndim == 1 else view

    def shown(size: int) -> list[int | None]:
        if size <= _TABLE_LIMIT:
            return list(range(size))
        half = _TABLE_LIMIT // 2
        return [*range(half), None, *range(size - half, size)]

    lines = []
    for i in shown(rows.shape[0]):
        cells = (
            "…"
            if i is None or j is None
            else html.escape(f"{rows[i, j]:.5g}" if rows.dtype.kind in "fV" else str(rows[i, j]))
            for j in shown(rows.shape[1])
        )
        lines.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    return f"<table>{''.join(lines)}</table>"


register_array_type(Array, lambda array: array._type.aval, Array._view)
