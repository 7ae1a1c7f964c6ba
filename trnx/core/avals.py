"""Abstract values: what tracing knows of an array, its shape and dtype."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trnx.core import dtypes
from trnx.core.dims import Dim, Size, decide_equal, same_shape, structurally_equal
from trnx.core.errors import ShapeError, UnknownTypeError, message

Shape = tuple[Size, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Aval:
    """Shape and dtype of an array, and whether its dtype is weak.

    Attributes:
        shape: sizes, ints or :class:`Dim`.
        dtype: a native NumPy dtype of those in :mod:`trnx.core.dtypes`.
        weak: True for values that come from Python scalars alone; promotion lets them give way.

    Raises:
        ShapeError: a size is negative, or neither an integer nor a Dim.
    """

    shape: Shape
    dtype: np.dtype[Any]
    weak: bool = False
    _hash: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        # What callers pass, whatever the annotation says: a shape is where their sizes end up.
        sizes: tuple[Any, ...] = self.shape
        for size in sizes:
            if type(size) is int:
                if size >= 0:
                    continue
                cause = f"A shape {self._sizes_text()} with the negative size {size}"
            elif isinstance(size, Dim | int | np.integer):
                continue
            else:
                cause = f"A shape with {size!r}, which is no integer"
            raise ShapeError(message(cause, None, "Use integers of at least 0 as sizes"))
        object.__setattr__(self, "_hash", hash((self.shape, self.dtype, self.weak)))

    def _sizes_text(self) -> str:
        return f"[{','.join(map(str, self.shape))}]"

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Aval):
            return NotImplemented
        # Sizes compare structurally: `==` of undecidable symbolic sizes raises.
        return (
            self._hash == other._hash
            and self.weak == other.weak
            and (self.shape is other.shape or same_shape(self.shape, other.shape))
            and self.dtype == other.dtype
        )

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> Size:
        """Number of elements."""
        total: Size = 1
        for size in self.shape:
            total = total * size
        return total

    @property
    def nbytes(self) -> Size:
        """Bytes of a dense array of this shape and dtype."""
        return self.size * self.dtype.itemsize

    @property
    def is_static(self) -> bool:
        """True when every size is an int."""
        return not any(isinstance(size, Dim) for size in self.shape)

    def with_shape(self, shape: Shape) -> Aval:
        """The same dtype with another shape."""
        return Aval(shape, self.dtype, self.weak)

    def with_dtype(self, dtype: np.dtype[Any], weak: bool = False) -> Aval:
        """The same shape with another dtype."""
        return Aval(self.shape, dtype, weak)

    def strong(self) -> Aval:
        """The same type without the weak mark."""
        return Aval(self.shape, self.dtype) if self.weak else self

    def __str__(self) -> str:
        return f"{dtypes.short_name(self.dtype)}{self._sizes_text()}{'~' if self.weak else ''}"

    def __repr__(self) -> str:
        return f"Aval({self})"


_interned: dict[Aval, Aval] = {}
_INTERNED_LIMIT = 1 << 14


def intern(aval: Aval) -> Aval:
    """One object for equal types, so that caches keyed by types compare by identity."""
    known = _interned.get(aval)
    if known is None:
        if len(_interned) >= _INTERNED_LIMIT:
            _interned.clear()
        known = _interned[aval] = aval
    return known


def make_aval(shape: Any, dtype: Any, weak: bool = False) -> Aval:
    """An Aval from loosely typed parts: any iterable of sizes, anything :func:`as_dtype` takes.

    Raises:
        ShapeError: a size is negative or no integer.
        DTypeError: an unknown dtype.
    """
    sizes: list[Size] = []
    for size in (shape,) if isinstance(shape, int | Dim) else shape:
        if isinstance(size, Dim):
            sizes.append(size)
            continue
        try:
            value = size.__index__()
        except AttributeError:
            raise ShapeError(
                message(f"Shape {shape!r} holds {size!r}, no integer", None, "Use ints as sizes")
            ) from None
        if value < 0:
            raise ShapeError(
                message(f"Shape {shape!r} has a negative size", None, "Use sizes of at least 0")
            )
        sizes.append(value)
    return Aval(tuple(sizes), dtypes.as_dtype(dtype), weak)


_SCALAR_AVALS = {
    kind: Aval((), dtype, dtype is not dtypes.bool_)
    for kind, dtype in ((bool, dtypes.bool_), (int, dtypes.int32), (float, dtypes.float32))
} | {complex: Aval((), dtypes.complex64, True)}

_array_types: dict[type, tuple[Callable[[Any], Aval], Callable[[Any], np.ndarray[Any, Any]]]] = {}


def register_array_type(
    cls: type,
    aval: Callable[[Any], Aval],
    to_numpy: Callable[[Any], np.ndarray[Any, Any]] = np.asarray,
) -> None:
    """Let instances of `cls` be operands of primitives.

    Args:
        cls: the class; subclasses are found too.
        aval: gives the abstract value of an instance.
        to_numpy: gives its contents, for digests of constants and for printing.
    """
    _array_types[cls] = (aval, to_numpy)


def _registered(cls: type) -> tuple[Callable[[Any], Aval], Callable[[Any], Any]] | None:
    entry = _array_types.get(cls)
    if entry is None:
        for base in cls.__mro__[1:]:
            if base in _array_types:
                entry = _array_types[cls] = _array_types[base]
                break
    return entry


def is_array_like(x: Any) -> bool:
    """True when `x` can be an operand: tracer, registered array, NumPy array or Python scalar."""
    cls = type(x)
    return cls in _SCALAR_AVALS or _registered(cls) is not None or isinstance(x, int | float)


def aval_of(x: Any) -> Aval:
    """The abstract value of an operand.

    Raises:
        TypeError: `x` is of no known array type.
        IntegerRangeError: a Python int outside int32 has no default dtype.
    """
    cls = type(x)
    entry = _array_types.get(cls)
    if entry is not None:
        return entry[0](x)
    scalar = _SCALAR_AVALS.get(cls)
    if scalar is not None:
        if cls is int:
            dtypes.check_python_int(x, scalar.dtype)
        return scalar
    entry = _registered(cls)
    if entry is not None:
        return entry[0](x)
    if isinstance(x, bool | int | float | complex):
        dtype, weak = dtypes.python_scalar_dtype(x)
        return Aval((), dtype, weak)
    raise UnknownTypeError(
        message(
            f"A value of type {cls.__module__}.{cls.__qualname__} is not an array",
            None,
            "Pass an array, a NumPy array or a Python number",
        )
    )


def to_numpy(x: Any) -> np.ndarray[Any, Any]:
    """Contents of an operand as a NumPy array (native byte order, registered dtypes only)."""
    entry = _registered(type(x))
    array = entry[1](x) if entry is not None else np.asarray(x)
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def check_unmasked(x: np.ndarray[Any, Any]) -> None:
    """A masked array is refused: its mask would be lost.

    Raises:
        UnknownTypeError: `x` is one.
    """
    if isinstance(x, np.ma.MaskedArray):
        raise UnknownTypeError(
            message(
                "A NumPy masked array was to become an array, which has no mask",
                None,
                "Pass x.filled(value), and x.mask as an array of its own where it counts",
            )
        )


def _numpy_aval(x: Any) -> Aval:
    check_unmasked(x)
    return Aval(x.shape, dtypes.as_dtype(x.dtype))


register_array_type(np.ndarray, _numpy_aval, np.asarray)
register_array_type(np.generic, _numpy_aval, np.asarray)


def broadcast_sizes(a: Size, b: Size) -> Size | None:
    """The size two axes broadcast to, or None when they do not fit.

    A size of literally 1 gives way; a symbolic size never counts as 1, because that would be true
    for one value of it only.

    Raises:
        DimError: the bounds do not decide whether the sizes are equal.
    """
    if structurally_equal(a, b) or (isinstance(b, int) and b == 1):
        return a
    if isinstance(a, int) and a == 1:
        return b
    if decide_equal(a, b) is None:
        return a if a == b else None  # `==` raises the DimError with its full text
    return None


def broadcast_shapes(*shapes: Shape) -> Shape:
    """The common shape of several shapes under NumPy's broadcasting rule.

    Raises:
        ShapeError: the shapes do not fit together.
        DimError: symbolic sizes whose equality the bounds do not decide.
    """
    rank = max((len(shape) for shape in shapes), default=0)
    result: list[Size] = [1] * rank
    for shape in shapes:
        for axis, size in enumerate(shape, rank - len(shape)):
            common = broadcast_sizes(result[axis], size)
            if common is None:
                texts = " and ".join(f"({','.join(map(str, s))})" for s in shapes)
                raise ShapeError(
                    message(
                        f"Shapes {texts} do not broadcast: axis {axis - rank} "
                        f"has sizes {result[axis]} and {size}",
                        None,
                        "Make the sizes equal or one of them 1",
                    )
                )
            result[axis] = common
    return tuple(result)


def static_size(shape: Shape) -> int:
    """Number of elements of a static shape."""
    return math.prod(int(size) for size in shape)
