"""Text of LLVM IR functions: values, blocks, counted loops with carried values.

The emitter writes final code: nothing after it removes redundancy except LLVM's code generator. A
``Value`` is a typed operand as text; vectors are spelled ``<16 x float>``. Vector width is a
property of the ``Lanes`` view, so the same code emits vectors and single elements.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from trnx.compiler.host.cpu import Cpu


class Value(NamedTuple):
    """An LLVM operand: its type and how it is written."""

    type: str
    text: str

    def __str__(self) -> str:
        return f"{self.type} {self.text}"


PTR: Final = "ptr"
I64: Final = "i64"
I32: Final = "i32"
I1: Final = "i1"


def i64(value: int) -> Value:
    """A 64-bit integer constant."""
    return Value(I64, str(value))


def vector_type(element: str, lanes: int) -> str:
    """``<lanes x element>``, or ``element`` for one lane."""
    return element if lanes == 1 else f"<{lanes} x {element}>"


def element_type(kind: str) -> str:
    """The element type of a vector type; a scalar type itself."""
    return kind.split(" x ")[1][:-1] if kind.startswith("<") else kind


def lanes_of(kind: str) -> int:
    """Lanes of a type."""
    return int(kind[1:].split(" ", 1)[0]) if kind.startswith("<") else 1


def mangle(kind: str) -> str:
    """A type as it appears in intrinsic names, e.g. ``v16f32``."""
    short = {"float": "f32", "double": "f64", "half": "f16", "ptr": "p0"}
    lanes, element = lanes_of(kind), element_type(kind)
    name = short.get(element, element)
    return name if lanes == 1 else f"v{lanes}{name}"


def float_text(value: float, element: str) -> str:
    """A float constant as hexadecimal bits, exact for every value."""
    if element == "float":
        value = struct.unpack("<f", struct.pack("<f", value))[0]
    elif element == "half":
        return f"0xH{struct.unpack('<H', struct.pack('<e', value))[0]:04X}"
    return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"


class Module:
    """Declarations, constants and functions of one LLVM module."""

    def __init__(self, cpu: Cpu) -> None:
        self.cpu = cpu
        self._declared: dict[str, str] = {}
        self._constants: dict[str, str] = {}
        self._parts: list[str] = []
        self._defined: set[str] = set()

    def declare(self, name: str, result: str, arguments: Sequence[str]) -> None:
        """Declare an external function once."""
        self._declared.setdefault(name, f"declare {result} @{name}({', '.join(arguments)})")

    def constant(self, kind: str, text: str, align: int = 64) -> Value:
        """A private global constant; equal ones are shared."""
        body = f"{kind} {text}, align {align}"
        name = self._constants.setdefault(body, f"@c{len(self._constants)}")
        return Value(PTR, name)

    def define(self, name: str, text: str) -> None:
        """Append the definition of a function that several kernels use, once."""
        if name not in self._defined:
            self._defined.add(name)
            self.add(text)

    def add(self, text: str) -> None:
        """Append a finished definition."""
        self._parts.append(text)

    def text(self) -> str:
        """The module as LLVM assembly."""
        head = [f'target triple = "{self.cpu.triple}"']
        head += [
            f"{name} = private unnamed_addr constant {body}"
            for body, name in self._constants.items()
        ]
        return "\n".join([*head, *self._declared.values(), *self._parts, ""])


@dataclass(slots=True)
class Loop:
    """An open counted loop: ``index`` runs over low, low + step, … below high."""

    index: Value
    carried: list[Value]
    _header: str = ""
    _exit: str = ""
    _phi: int = 0
    _entry: str = ""
    _low: Value = field(default_factory=lambda: i64(0))
    _high: Value = field(default_factory=lambda: i64(0))
    _step: int = 1
    _initial: tuple[Value, ...] = ()
    _tested: bool = False


class Function:
    """One function under construction.

    Args:
        module: where it goes.
        name: symbol.
        result: return type.
        arguments: ``(type, name)`` pairs; read them with ``argument``.
        attributes: LLVM function attributes.
        internal: whether the symbol stays inside the module.
    """

    def __init__(
        self,
        module: Module,
        name: str,
        result: str,
        arguments: Sequence[tuple[str, str]],
        attributes: str = "nounwind",
        internal: bool = False,
    ) -> None:
        self.module = module
        self.cpu = module.cpu
        self.name = name
        linkage = "internal " if internal else ""
        head = ", ".join(f"{kind} %{arg}" for kind, arg in arguments)
        self._head = f"define {linkage}{result} @{name}({head}) {attributes} {{"
        self._arguments = {arg: Value(kind, f"%{arg}") for kind, arg in arguments}
        self._stack: list[str] = []
        self._reserved: dict[str, int] = {}
        self._lines: list[str] = []
        self._count = 0
        self.block = "entry"

    # Basics -----------------------------------------------------------------------------------

    def argument(self, name: str) -> Value:
        """A parameter by name."""
        return self._arguments[name]

    def _fresh(self, prefix: str = "v") -> str:
        self._count += 1
        return f"{prefix}{self._count}"

    def emit(self, kind: str, text: str) -> Value:
        """Append ``%n = text`` and return the new value of type ``kind``."""
        self._count += 1
        name = f"%v{self._count}"
        self._lines.append(f"  {name} = {text}")
        return Value(kind, name)

    def reserve(self, kind: str) -> Value:
        """A value whose instruction is given later with ``fill``."""
        value = self.emit(kind, "")
        self._reserved[value.text] = len(self._lines) - 1
        return value

    def fill(self, value: Value, text: str) -> None:
        """The instruction of a reserved value."""
        self._lines[self._reserved.pop(value.text)] = f"  {value.text} = {text}"

    def hold(self, count: int) -> int:
        """Leave room for ``count`` lines here; returns the position of the first."""
        self._lines.extend([""] * count)
        return len(self._lines) - count

    def set_held(self, position: int, text: str) -> None:
        """The instruction for a line that ``hold`` left."""
        self._lines[position] = "  " + text

    def line(self, text: str) -> None:
        """Append an instruction without a result."""
        self._lines.append("  " + text)

    def finish(self, result: Value | None = None) -> None:
        """Close the function with a return and add it to the module."""
        self.line("ret void" if result is None else f"ret {result}")
        self.end()

    def end(self) -> None:
        """Close the function; its last block already ends in a terminator."""
        self.module.add("\n".join([self._head, "entry:", *self._stack, *self._lines, "}"]))

    # Blocks -----------------------------------------------------------------------------------

    def new_block(self, prefix: str = "b") -> str:
        """A label that is not placed yet."""
        return self._fresh(prefix)

    def place(self, label: str) -> None:
        """Start the block ``label``; code after it belongs to it."""
        self._lines.append(f"{label}:")
        self.block = label

    def jump(self, label: str) -> None:
        """End the block with a branch."""
        self.line(f"br label %{label}")

    def branch(self, condition: Value, yes: str, no: str) -> None:
        """End the block with a conditional branch."""
        self.line(f"br i1 {condition.text}, label %{yes}, label %{no}")

    def phi(self, kind: str, incoming: Iterable[tuple[Value, str]]) -> Value:
        """A phi of (value, block) pairs; must come first in its block."""
        pairs = ", ".join(f"[ {v.text}, %{b} ]" for v, b in incoming)
        return self.emit(kind, f"phi {kind} {pairs}")

    def begin_loop(
        self,
        low: Value,
        high: Value,
        step: int = 1,
        carried: Sequence[Value] = (),
        runs: bool = False,
    ) -> Loop:
        """Open a loop over low, low + step, … while below high.

        Args:
            low: i64 first index.
            high: i64 bound.
            step: positive constant step.
            carried: values that each iteration hands to the next.
            runs: the caller knows that there is at least one iteration, so the test comes last.
        """
        header, body, leave = self._fresh("h"), self._fresh("b"), self._fresh("x")
        entry = self.block
        self.jump(header)
        self.place(header)
        index = Value(I64, f"%{self._fresh('i')}")
        phis = [Value(v.type, f"%{self._fresh('c')}") for v in carried]
        position = len(self._lines)
        self._lines.extend([""] * (1 + len(phis)))
        if not runs:
            inside = self.icmp("slt", index, high)
            self.branch(inside, body, leave)
            self.place(body)
        return Loop(
            index, phis, header, leave, position, entry, low, high, step, tuple(carried), not runs
        )

    def end_loop(self, loop: Loop, carried: Sequence[Value] = ()) -> list[Value]:
        """Close ``loop``; ``carried`` are the next iteration's values. Returns the final ones."""
        following = self.binary("add nsw", loop.index, i64(loop._step))
        latch = self.block
        if loop._tested:
            self.jump(loop._header)
        else:
            again = self.icmp("slt", following, loop._high)
            self.branch(again, loop._header, loop._exit)
        starts = [(loop.index, loop._low, following)]
        starts += list(zip(loop.carried, loop._initial, carried, strict=True))
        for k, (phi, first, after) in enumerate(starts):
            self._lines[loop._phi + k] = (
                f"  {phi.text} = phi {phi.type} [ {first.text}, %{loop._entry} ], "
                f"[ {after.text}, %{latch} ]"
            )
        self.place(loop._exit)
        return list(loop.carried) if loop._tested else list(carried)

    # Scalar and vector instructions -----------------------------------------------------------

    def binary(self, op: str, a: Value, b: Value) -> Value:
        """``op a, b`` of one type, e.g. ``fadd`` or ``add nsw``."""
        return self.emit(a.type, f"{op} {a.type} {a.text}, {b.text}")

    def unary(self, op: str, a: Value) -> Value:
        """``op a``, e.g. ``fneg``."""
        return self.emit(a.type, f"{op} {a.type} {a.text}")

    def convert(self, op: str, a: Value, kind: str) -> Value:
        """A conversion instruction such as ``sitofp`` or ``bitcast`` to type ``kind``."""
        return a if a.type == kind else self.emit(kind, f"{op} {a} to {kind}")

    def icmp(self, relation: str, a: Value, b: Value) -> Value:
        """Integer comparison."""
        mask = vector_type(I1, lanes_of(a.type))
        return self.emit(mask, f"icmp {relation} {a.type} {a.text}, {b.text}")

    def fcmp(self, relation: str, a: Value, b: Value) -> Value:
        """Float comparison."""
        mask = vector_type(I1, lanes_of(a.type))
        return self.emit(mask, f"fcmp {relation} {a.type} {a.text}, {b.text}")

    def select(self, mask: Value, a: Value, b: Value) -> Value:
        """``a`` where ``mask``, else ``b``."""
        return self.emit(a.type, f"select {mask}, {a}, {b}")

    def intrinsic(
        self, name: str, kind: str, *arguments: Value, suffix: str | None = None
    ) -> Value:
        """Call ``llvm.name`` mangled with the result type (or ``suffix``)."""
        full = f"llvm.{name}.{mangle(kind) if suffix is None else suffix}".rstrip(".")
        return self.call(full, kind, *arguments)

    def call(self, name: str, kind: str, *arguments: Value) -> Value:
        """Call an external function, declared on first use."""
        self.module.declare(name, kind, [a.type for a in arguments])
        return self.emit(kind, f"call {kind} @{name}({', '.join(map(str, arguments))})")

    def call_void(self, name: str, *arguments: Value) -> None:
        """Call an external function without a result."""
        self.module.declare(name, "void", [a.type for a in arguments])
        self.line(f"call void @{name}({', '.join(map(str, arguments))})")

    def splat(self, a: Value, lanes: int) -> Value:
        """A vector with ``a`` in every lane."""
        if lanes == 1:
            return a
        kind = vector_type(a.type, lanes)
        first = self.emit(kind, f"insertelement {kind} poison, {a}, i64 0")
        return self.emit(
            kind,
            f"shufflevector {first}, {kind} poison, <{lanes} x i32> zeroinitializer",
        )

    def number(self, value: float | int, kind: str) -> Value:
        """A constant of ``kind`` (vector or scalar) with ``value`` in every lane."""
        lanes, element = lanes_of(kind), element_type(kind)
        if element in ("float", "double", "half"):
            text = float_text(float(value), element)
        else:
            bits = int(element[1:])
            text = str(int(value) & ((1 << bits) - 1)) if value >= 0 else str(int(value))
            if bits == 1:
                text = "true" if value else "false"
        if lanes == 1:
            return Value(kind, text)
        return Value(kind, f"splat ({element} {text})")

    def extract(self, a: Value, lane: int) -> Value:
        """One lane of a vector (a scalar itself)."""
        if lanes_of(a.type) == 1:
            return a
        return self.emit(element_type(a.type), f"extractelement {a}, i64 {lane}")

    def insert(self, a: Value, element: Value, lane: int) -> Value:
        """``a`` with one lane replaced."""
        if lanes_of(a.type) == 1:
            return element
        return self.emit(a.type, f"insertelement {a}, {element}, i64 {lane}")

    def each_lane(self, function: str, *arguments: Value) -> Value:
        """A scalar function of matching scalar types applied lane by lane."""
        kind = arguments[0].type
        element = element_type(kind)
        result = Value(kind, "poison")
        for lane in range(lanes_of(kind)):
            parts = [self.extract(a, lane) for a in arguments]
            result = self.insert(result, self.call(function, element, *parts), lane)
        return result

    # Memory -----------------------------------------------------------------------------------

    def pointer(self, base: Value, index: Value, element: str) -> Value:
        """Address of ``base[index]`` for elements of type ``element``."""
        if index.text == "0":
            return base
        return self.emit(PTR, f"getelementptr {element}, {base}, {index}")

    def load(self, kind: str, address: Value, align: int = 0) -> Value:
        """Load; ``align`` defaults to the element's size."""
        return self.emit(kind, f"load {kind}, {address}, align {align or size_of(kind)}")

    def prefetch(self, address: Value, write: bool = False, level: int = 1) -> None:
        """Bring the line at ``address`` into a cache level; any address is harmless."""
        self.module.declare("llvm.prefetch.p0", "void", [PTR, I32, I32, I32])
        near = 4 - level
        self.line(f"call void @llvm.prefetch.p0({address}, i32 {int(write)}, i32 {near}, i32 1)")

    def store(self, value: Value, address: Value, align: int = 0) -> None:
        """Store; ``align`` defaults to the element's size."""
        self.line(f"store {value}, {address}, align {align or size_of(value.type)}")

    def stack(self, kind: str, count: int = 1) -> Value:
        """A stack slot, allocated in the entry block."""
        name = f"%{self._fresh('s')}"
        self._stack.append(f"  {name} = alloca {kind}, i64 {count}, align 64")
        return Value(PTR, name)


def size_of(kind: str) -> int:
    """Bytes of one element of a type."""
    element = element_type(kind)
    sizes = {"float": 4, "double": 8, "half": 2, "ptr": 8, "i1": 1}
    return sizes[element] if element in sizes else int(element[1:]) // 8
