"""``KernelBuilder``: write a kernel as straight Python.

There is one method per instruction of ``isa.SPECS``: operands (destinations first, then sources,
in declared order, by position or name) are views, numbers or registers; attributes are keywords.
Each instruction records the line that is current (the user's line during lowering).

    b = KernelBuilder("double", "trn2")
    x = b.param("x", (1000, 512), float32, "in")
    y = b.param("y", (1000, 512), float32, "out")
    with b.loop("i", 0, 8) as i:
        rows = minimum(128, 1000 - i * 128)
        t = b.sbuf((128, 512), float32)
        b.dma_copy(t[:rows], x[i * 128 : i * 128 + rows])
        b.tensor_scalar(t[:rows], t[:rows], 2.0, op0="multiply")
        b.dma_copy(y[i * 128 : i * 128 + rows], t[:rows])
    kernel = b.finish()
"""

from __future__ import annotations

import keyword
import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from trnx.compiler.tile import isa
from trnx.compiler.tile.expr import Expr, Index, symbol
from trnx.compiler.tile.ir import (
    PSUM,
    SBUF,
    Access,
    Alloc,
    Attribute,
    Buffer,
    For,
    HbmAccess,
    Instruction,
    Kernel,
    KernelCall,
    Operand,
    Param,
    Predicate,
    RegisterLoad,
    RegisterMove,
    RegisterValue,
    Span,
    Statement,
    Tile,
    TileAccess,
    TileProgram,
    While,
    row_major,
)
from trnx.compiler.tile.views import HbmView, TileView, as_index
from trnx.core.dtypes import as_dtype, is_bool, is_float, short_name
from trnx.core.errors import TileError, message
from trnx.core.source import Source, current_source, use_source

_RELATIONS: dict[str, Callable[[int, int], bool]] = {
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
}


def predicate(left: Index, relation: str, right: Index) -> Predicate | bool:
    """``left relation right`` for an attribute such as ``accumulate``; folds constants.

    ``relation`` is one of ``> >= == != < <=``.
    """
    if relation not in _RELATIONS:
        raise TileError(
            message(f"'{relation}' is no relation", None, f"Use one of {' '.join(_RELATIONS)}")
        )
    if isinstance(left, int) and isinstance(right, int):
        return _RELATIONS[relation](left, right)
    return Predicate(left, relation, right)


class KernelBuilder:
    """Builds one ``Kernel``; see the module docstring.

    Args:
        name: the kernel's name; characters that no identifier has become ``_``.
        target: a row of ``targets.TARGETS`` by name; kept for the caller, the builder itself
            writes the same kernel for every target.
        source: the line of the kernel as a whole; the current line when None.
    """

    def __init__(self, name: str, target: str = "trn2", *, source: Source | None = None) -> None:
        self.name = re.sub(r"\W", "_", name)
        self.target = target
        self._source = current_source() if source is None else source
        self._params: list[Param] = []
        self._registers: list[str] = []
        self._bodies: list[list[Statement]] = [[]]
        self._names: set[str] = set()
        self._counters: dict[str, int] = {}
        self._tiles: dict[str, Tile] = {}

    # Names ------------------------------------------------------------------------------------

    def _exact(self, name: str, what: str) -> str:
        _check_name(name, what)
        if name in self._names:
            raise TileError(
                message(
                    f"{what} '{name}' is declared twice in kernel '{self.name}'", None, "Rename one"
                )
            )
        self._names.add(name)
        return name

    def unique(self, base: str) -> str:
        """``base`` if it is free, else ``base1``, ``base2``, …; the name is then taken."""
        name = base
        while name in self._names or name in RESERVED or keyword.iskeyword(name):
            self._counters[base] = self._counters.get(base, 0) + 1
            name = f"{base}{self._counters[base]}"
        _check_name(name, "name")
        self._names.add(name)
        return name

    def _numbered(self, prefix: str) -> str:
        while True:
            number = self._counters.get(prefix, 0)
            self._counters[prefix] = number + 1
            if f"{prefix}{number}" not in self._names:
                self._names.add(f"{prefix}{number}")
                return f"{prefix}{number}"

    # Declarations -----------------------------------------------------------------------------

    def param(
        self,
        name: str,
        shape: Sequence[Index],
        dtype: Any,
        role: str = "in",
        strides: Sequence[Index] | None = None,
    ) -> HbmView:
        """Declare an HBM parameter; ``role`` is ``in``, ``out`` or ``inout``.

        Sizes and strides (elements, row major when None) may be register arguments.
        """
        if role not in ("in", "out", "inout"):
            raise TileError(message(f"role '{role}' of '{name}'", None, "Use in, out or inout"))
        counts = tuple(as_index(s) for s in shape)
        steps = None if strides is None else tuple(as_index(s) for s in strides)
        declared = Param(self._exact(name, "parameter"), counts, as_dtype(dtype), role)
        if steps is not None and steps != declared.element_strides:
            declared = Param(name, counts, declared.dtype, role, steps)
        self._params.append(declared)
        spans = zip(declared.element_strides, counts, strict=True)
        return HbmView(declared, 0, tuple(Span(stride, count) for stride, count in spans))

    def register_argument(self, name: str) -> Expr:
        """Declare a run-time integer (a size or a stride) that the kernel call passes."""
        self._registers.append(self._exact(name, "register"))
        return symbol(name)

    def sbuf(self, shape: Sequence[int], dtype: Any, name: str = "") -> TileView:
        """Allocate an SBUF tile of ``(partitions, free sizes …)`` in the current body."""
        return self.tile(SBUF, shape, dtype, name)

    def psum(self, shape: Sequence[int], dtype: Any, name: str = "") -> TileView:
        """Allocate a PSUM tile of ``(partitions, free sizes …)`` in the current body."""
        return self.tile(PSUM, shape, dtype, name)

    def tile(self, memory: str, shape: Sequence[int], dtype: Any, name: str = "") -> TileView:
        """Allocate a tile in ``memory`` (``sbuf`` or ``psum``); its contents are undefined."""
        sizes = tuple(int(s) for s in shape)
        if len(sizes) < 2 or min(sizes) < 1:
            raise TileError(
                message(
                    f"a tile of shape {list(sizes)} has no partition and free dimension",
                    None,
                    "Give (partitions, free sizes ...), all >= 1",
                )
            )
        made = self.unique(name) if name else self._numbered("t" if memory == SBUF else "p")
        declared = Tile(made, memory, sizes, as_dtype(dtype))
        self._tiles[made] = declared
        self._emit(Alloc(declared))
        return TileView(declared, 0, sizes[0], 0, row_major(sizes[1:]))

    # Control ----------------------------------------------------------------------------------

    @contextmanager
    def loop(
        self, index: str, low: Index, high: Index, step: int = 1, parallel: bool = False
    ) -> Iterator[Expr]:
        """``for index in range(low, high, step)``; yields the index.

        A register in a bound makes it a device loop. ``parallel`` is usually left to
        ``parallel.mark_parallel``, which proves it.
        """
        name = self.unique(index)
        self._bodies.append([])
        yield symbol(name)
        body = tuple(self._bodies.pop())
        self._emit(For(name, low, high, body, step, parallel))

    @contextmanager
    def while_loop(self, condition: Index) -> Iterator[None]:
        """Repeat the block while register ``condition`` is non-zero; the block updates it."""
        name = self._register_name(condition)
        self._bodies.append([])
        yield
        body = tuple(self._bodies.pop())
        self._emit(While(name, body))

    def register(self, name: str = "", value: Index = 0) -> Expr:
        """A new register that holds ``value``."""
        made = self.unique(name) if name else self._numbered("r")
        self._emit(RegisterMove(made, value))
        return symbol(made)

    def declare_register(self, name: str = "") -> Expr:
        """A register without a value yet: ``load_register(into=)`` or ``move_register`` sets it."""
        return symbol(self.unique(name) if name else self._numbered("r"))

    def load_register(
        self, access: TileView | HbmView | Access, name: str = "", *, into: Index | None = None
    ) -> Expr:
        """Read one int32/uint32 element into a new register, or into the register ``into``."""
        if into is not None:
            made = self._register_name(into)
        else:
            made = self.unique(name) if name else self._numbered("r")
        raw = access.access if isinstance(access, TileView | HbmView) else access
        self._emit(RegisterLoad(made, raw))
        return symbol(made)

    def move_register(self, register: Index, value: Index) -> None:
        """``register = value``."""
        self._emit(RegisterMove(self._register_name(register), value))

    def _register_name(self, register: Index) -> str:
        text = str(register)
        if isinstance(register, int) or text not in self._names:
            raise TileError(
                message(f"'{text}' is not a register", None, "Pass what register() returned")
            )
        return text

    @contextmanager
    def at(self, source: Source | None) -> Iterator[None]:
        """Give the instructions of the block this source line (None: the one in force stays)."""
        with nullcontext() if source is None else use_source(source):
            yield

    # Instructions -----------------------------------------------------------------------------

    def instruction(self, op: str, /, *operands: Any, engine: str = "", **keywords: Any) -> None:
        """Append instruction ``op``; the generated methods call this.

        Args:
            op: a name in ``isa.SPECS``.
            operands: required destinations, then sources, in the declared order.
            engine: compute engine or DMA trigger; the default of ``isa.default_engine`` if empty.
            keywords: operands and attributes by name.
        """
        spec = isa.spec(op)
        slots = [o.name for o in spec.outs if not o.optional] + [o.name for o in spec.ins]
        if len(operands) > len(slots):
            raise TileError(
                message(
                    f"{op} takes {len(slots)} operands ({', '.join(slots)}), not {len(operands)}",
                    None,
                    "Give attributes by keyword",
                )
            )
        given: dict[str, Any] = dict(zip(slots, operands, strict=False))
        for key, value in keywords.items():
            if key in given:
                raise TileError(message(f"{op} got '{key}' twice", None, "Drop one"))
            given[key] = value
        outs: list[Access] = []
        for slot in spec.outs:
            value = given.pop(slot.name, None)
            if value is None and slot.optional:
                continue
            operand = self._operand(op, slot, value)
            assert isinstance(operand, TileAccess | HbmAccess)
            outs.append(operand)
        ins = tuple(self._operand(op, slot, given.pop(slot.name, None)) for slot in spec.ins)
        if op == "memset":
            ins = (_typed_immediate(ins[0], self._dtype(outs[0])),)
        attrs = self._attributes(spec, given)
        made = Instruction(op, tuple(outs), ins, attrs, engine, source=current_source())
        if not engine:
            chosen = isa.default_engine(made, self._dtype, self._memory)
            made = Instruction(op, made.outs, ins, attrs, chosen, source=made.source)
        self._emit(made)

    def _operand(self, op: str, slot: isa.OperandSpec, value: Any) -> Operand:
        if value is None:
            if slot.optional:
                return None
            raise TileError(
                message(f"{op} has no operand '{slot.name}'", None, "Pass it by position or name")
            )
        if isinstance(value, TileView | HbmView):
            value = value.access
        is_access = isinstance(value, TileAccess | HbmAccess)
        if slot.form == "tile" or (is_access and slot.form != "immediate"):
            if not is_access:
                raise TileError(
                    message(
                        f"operand '{slot.name}' of {op} is {type(value).__name__}, not an access",
                        None,
                        "Pass a view of a tile or of an HBM parameter",
                    )
                )
            return value
        if isinstance(value, Expr):
            return RegisterValue(value)
        if isinstance(value, np.generic):
            value = value.item()
        if isinstance(value, float) and math.isnan(value):
            # One object, so that equal kernels compare equal.
            return math.nan
        if isinstance(value, bool | int | float | RegisterValue):
            return value
        raise TileError(
            message(
                f"operand '{slot.name}' of {op} is {type(value).__name__}",
                None,
                "Pass a number" + ("" if slot.form == "immediate" else " or a view of a tile"),
            )
        )

    def _attributes(
        self, spec: isa.InstructionSpec, given: dict[str, Any]
    ) -> tuple[tuple[str, Attribute], ...]:
        attrs: list[tuple[str, Attribute]] = []
        for declared in spec.attrs:
            value = given.pop(declared.name, declared.default)
            value = _freeze(value)
            # Absent and off are the same thing; dropping both keeps equal instructions equal.
            if value is not None and value is not False:
                attrs.append((declared.name, value))
        if given:
            known = [o.name for o in (*spec.outs, *spec.ins)] + [a.name for a in spec.attrs]
            raise TileError(
                message(
                    f"{spec.name} has no operand or attribute '{next(iter(given))}'",
                    None,
                    f"It takes {', '.join(known)}",
                )
            )
        return tuple(attrs)

    def _dtype(self, access: Access) -> np.dtype[Any]:
        if isinstance(access, TileAccess):
            return self._tiles[access.tile].dtype
        return next(p.dtype for p in self._params if p.name == access.buffer)

    def _memory(self, access: Access) -> str:
        return self._tiles[access.tile].memory if isinstance(access, TileAccess) else "hbm"

    def _emit(self, statement: Statement) -> None:
        self._bodies[-1].append(statement)

    def finish(self) -> Kernel:
        """The kernel; TileError when a loop is still open."""
        if len(self._bodies) != 1:
            raise TileError(
                message(
                    f"kernel '{self.name}' has an open loop", None, "Leave its with block first"
                )
            )
        body = tuple(self._bodies[0])
        return Kernel(
            self.name, tuple(self._params), body, tuple(self._registers), source=self._source
        )

    if TYPE_CHECKING:

        def __getattr__(self, op: str) -> Callable[..., None]: ...


_TEXT_WORDS = ("_", "inf", "load", "max", "min", "nan", "none", "reg", "true", "false")
_NKI_WORDS = ("range", "float", "len", "tuple", "list", "nki", "nisa", "nl", "bool8", "INF", "NAN")
_HELPERS = ("column", "repeat", "scatter_add")
RESERVED: Final = frozenset((*_TEXT_WORDS, *_NKI_WORDS, *_HELPERS))
"""Names with a meaning in the text form or in printed NKI source."""


def _check_name(name: str, what: str) -> None:
    """Names are Python identifiers, so that every printed form can use them as they are."""
    if not name.isidentifier() or keyword.iskeyword(name) or name in RESERVED:
        raise TileError(
            message(f"{what} '{name}' is no usable identifier", None, "Choose a plain Python name")
        )


def _freeze(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return tuple(_freeze(v) for v in value)
    if isinstance(value, np.generic):
        return value.item()
    return value


def _typed_immediate(value: Operand, dtype: np.dtype[Any]) -> Operand:
    """The value of a memset as a Python number of the destination's kind (0 or 1 for bool)."""
    if not isinstance(value, bool | int | float):
        return value
    if is_float(dtype):
        return value if isinstance(value, float) else float(value)
    if value != int(value) or (is_bool(dtype) and value not in (0, 1)):
        raise TileError(
            message(
                f"memset of {value} into {short_name(dtype)} loses the value",
                None,
                "Use a float tile",
            )
        )
    return int(value)


def _method(name: str) -> Callable[..., None]:
    def emit(self: KernelBuilder, /, *operands: Any, engine: str = "", **keywords: Any) -> None:
        self.instruction(name, *operands, engine=engine, **keywords)

    spec = isa.SPECS[name]
    emit.__name__ = name
    emit.__qualname__ = f"KernelBuilder.{name}"
    emit.__doc__ = spec.doc
    return emit


for _name in isa.SPECS:
    setattr(KernelBuilder, _name, _method(_name))


def single_kernel_program(
    kernel: Kernel, target: str, register_values: Sequence[str] | None = None
) -> TileProgram:
    """A program that calls one kernel once on buffers named like its parameters.

    ``in`` parameters become inputs, ``out`` parameters outputs; an ``inout`` parameter is an input
    that is also returned. The kernel's registers become the program's registers.
    """
    kinds = {"in": "input", "inout": "input", "out": "output"}
    ordered = sorted(kernel.params, key=lambda p: p.role == "out")
    buffers = tuple(
        Buffer(p.name, p.shape, p.dtype, kinds[p.role], strides=p.strides) for p in ordered
    )
    registers = tuple(kernel.registers if register_values is None else register_values)
    call = KernelCall(0, tuple(p.name for p in kernel.params), tuple(symbol(r) for r in registers))
    outputs = tuple(p.name for p in kernel.params if p.role != "in")
    return TileProgram(kernel.name, target, buffers, (kernel,), (call,), outputs, registers)
