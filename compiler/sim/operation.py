"""One dynamic instance of an instruction: its operands as windows and values.

The semantic functions in ``moves`` and ``compute`` see instructions only through this class.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trnx.compiler.sim import alu
from trnx.compiler.sim.cast import cast
from trnx.compiler.sim.frames import Frame, RowsView, Window
from trnx.compiler.sim.memory import View
from trnx.compiler.tile import isa
from trnx.compiler.tile.ir import HbmAccess, Instruction, Predicate, RegisterValue, TileAccess
from trnx.compiler.tile.text import access_text
from trnx.core.dtypes import short_name
from trnx.core.errors import TileError, message

Array = NDArray[Any]
Missing = Callable[["Operation", str, int], None]

_RELATIONS: dict[str, Callable[[int, int], bool]] = {
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
}


class Operation:
    """An instruction with evaluated operands.

    Args:
        instruction: the static instruction.
        frame: the running kernel call.
        native: whether the target computes f64 and 64-bit integers; instructions of the 64-bit
            integer extension count as native on every target.
        missing: called with the operation, the operand's text and the count of uninitialised
            elements whenever a read meets some.
    """

    def __init__(
        self, instruction: Instruction, frame: Frame, native: bool, missing: Missing
    ) -> None:
        self.instruction = instruction
        self.frame = frame
        self.native = native or isa.is_extension(instruction, frame.dtype)
        self._missing = missing
        source = instruction.source
        self.outs: tuple[Window, ...] = tuple(frame.view(a, source) for a in instruction.outs)
        self.ins: tuple[Window | bool | int | float | None, ...] = tuple(
            frame.view(o, source)
            if isinstance(o, TileAccess | HbmAccess)
            else frame.value(o.value)
            if isinstance(o, RegisterValue)
            else o
            for o in instruction.ins
        )
        self.unwritten: dict[int, NDArray[np.bool_]] = {}

    # Reading ----------------------------------------------------------------------------------

    def _read(self, window: Window, text: str) -> Array:
        values, count = window.read()
        if count:
            self._missing(self, text, count)
        return values

    def tile(self, index: int) -> Array:
        """The values of source operand ``index``, which must be a tile or HBM access."""
        window = self.ins[index]
        access = self.instruction.ins[index]
        if not isinstance(window, View | RowsView):
            raise self.error(f"operand {index} is {window!r}, not a tile", "Pass an access")
        assert isinstance(access, TileAccess | HbmAccess)
        return self._read(window, access_text(access))

    def scalar(self, index: int) -> bool | int | float:
        """Source operand ``index`` as a Python number."""
        value = self.ins[index]
        if not isinstance(value, bool | int | float):
            raise self.error(f"operand {index} is {value!r}, not a number", "Pass a constant")
        return value

    def scalar_or_tile(self, index: int) -> Array | bool | int | float:
        """Source operand ``index`` as values or a Python number."""
        if isinstance(self.ins[index], View | RowsView):
            return self.tile(index)
        return self.scalar(index)

    def row_value(self, index: int) -> Array | bool | int | float | None:
        """A scalar operand: a number, per-partition values shaped to broadcast, or None."""
        if index >= len(self.ins) or self.ins[index] is None:
            return None
        value = self.scalar_or_tile(index)
        if not isinstance(value, np.ndarray):
            return value
        self.require_row_scalar(value, index)
        data = self.outs[0].shape
        return value.reshape(value.shape[0], *([1] * (len(data) - 1)))

    def row_operand(self, index: int, dtype: np.dtype[Any]) -> Array | None:
        """A scalar operand cast to ``dtype``; None when absent."""
        value = self.row_value(index)
        if value is None:
            return None
        return cast(value, dtype) if isinstance(value, np.ndarray) else np.asarray(value, dtype)

    def destination(self, index: int) -> Array:
        """The present values of destination ``index``."""
        return self._read(self.outs[index], access_text(self.instruction.outs[index]))

    def peek(self, index: int) -> tuple[Array, NDArray[np.bool_]]:
        """The present values of an on-chip destination and which are initialised."""
        window = self.outs[index]
        assert isinstance(window, View)
        return window.peek()

    def keep_unwritten(self, index: int, written: NDArray[np.bool_]) -> None:
        """Only these elements of destination ``index`` count as initialised after the write."""
        self.unwritten[index] = written

    def rows(self, index: int, values: Array) -> Iterator[tuple[View, Array]]:
        """Destination ``index`` and ``values`` in row order; one piece when rows are disjoint."""
        window = self.outs[index]
        if isinstance(window, RowsView):
            yield from zip(window.rows, values, strict=True)
        elif _disjoint(window):
            yield window, values
        else:
            yield from _elements(window, values)

    def read_row(self, window: View) -> Array:
        """The present values of one of ``rows``."""
        return self._read(window, access_text(self.instruction.outs[0]))

    # Attributes -------------------------------------------------------------------------------

    def name(self, key: str, default: str | None = None) -> str:
        """A text attribute such as an operator name."""
        value = self.instruction.attr(key, default)
        if not isinstance(value, str):
            raise self.error(f"attribute '{key}' is {value!r}", f"Give {key} a name")
        return value

    def flag(self, key: str) -> bool:
        """A bool or predicate attribute, evaluated."""
        value = self.instruction.attr(key, False)
        if isinstance(value, Predicate):
            left, right = self.frame.value(value.left), self.frame.value(value.right)
            return _RELATIONS[value.relation](left, right)
        return bool(value)

    def integer(self, key: str, default: int) -> int:
        """An integer or index-expression attribute, evaluated."""
        value: Any = self.instruction.attr(key, default)
        return default if value is None else self.frame.value(value)

    def axes(self, key: str) -> tuple[int, ...]:
        """An axes attribute."""
        value: Any = self.instruction.attr(key, (1,))
        return (value,) if isinstance(value, int) else tuple(value)

    def pattern(self, key: str) -> tuple[tuple[int, int], ...]:
        """A pattern attribute: ``(step, count)`` pairs, evaluated."""
        value: Any = self.instruction.attr(key, ())
        return tuple((self.frame.value(step), self.frame.value(count)) for step, count in value)

    # Types ------------------------------------------------------------------------------------

    def tile_dtypes(self) -> list[np.dtype[Any]]:
        """Dtypes of the source operands that are tiles."""
        return [w.dtype for w in self.ins if isinstance(w, View | RowsView)]

    @cached_property
    def exact_integer(self) -> bool:
        """Whether GpSimd computes this instruction in wrapping 32-bit integers."""
        return self.instruction.engine == isa.GPSIMD and isa.is_exact_integer(
            self.instruction, self.frame.dtype
        )

    def compute_dtype(self, ops: Sequence[str]) -> np.dtype[Any]:
        """The dtype the instruction computes in; see ``alu.compute_dtype``."""
        return alu.compute_dtype(
            self.tile_dtypes(),
            self.outs[0].dtype,
            ops,
            native=self.native,
            float_immediate=any(isinstance(v, float) for v in self.ins),
            exact_integer=self.exact_integer,
        )

    # Errors -----------------------------------------------------------------------------------

    def error(self, cause: str, remedy: str) -> TileError:
        """An error about this instruction at the user's line."""
        source = self.instruction.source or self.frame.kernel.source
        return TileError(message(f"{self.instruction.op}: {cause}", source, remedy))

    def require_same_shape(self, left: tuple[int, ...], right: tuple[int, ...]) -> None:
        """Raise unless two accesses have one shape."""
        if left != right:
            raise self.error(
                f"shapes {list(left)} and {list(right)} differ",
                "Give every operand the same partition and free counts",
            )

    def require_same_dtype(self, left: np.dtype[Any], right: np.dtype[Any]) -> None:
        """Raise unless two accesses have one dtype."""
        if left != right:
            raise self.error(
                f"dtypes {short_name(left)} and {short_name(right)} differ",
                "Cast with tensor_copy first",
            )

    def require_row_scalar(self, value: Array, index: int) -> None:
        """Raise unless an operand has one element per partition of the destination."""
        rows = self.outs[0].shape[0]
        if value.shape[0] != rows or value.size != rows:
            raise self.error(
                f"operand {index} has shape {list(value.shape)}",
                f"Give one element per partition, [{rows}, 1]",
            )


def _disjoint(window: View) -> bool:
    starts, length = window.runs
    items = int(np.prod(window.shape)) * window.dtype.itemsize
    return int(starts.size) * length == items and (
        starts.size < 2 or bool((np.diff(starts) >= length).all())
    )


def _elements(window: View, values: Array) -> Iterator[tuple[View, Array]]:
    """A window whose elements repeat, split until each part is free of repeats."""
    for i in range(window.shape[0]):
        part = View(
            window.memory,
            window.offset + i * window.strides[0],
            window.shape[1:],
            window.strides[1:],
            window.dtype,
        )
        if part.shape and not _disjoint(part):
            yield from _elements(part, values[i])
        else:
            yield part, values[i]
