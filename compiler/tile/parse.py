"""Reads the text form of tile programs (see ``text``) back into an equal program."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, NoReturn, TypeVar

import numpy as np

from trnx.compiler.tile import isa
from trnx.compiler.tile.expr import (
    Index,
    add,
    floordiv,
    maximum,
    minimum,
    mod,
    mul,
    scale,
    symbol,
)
from trnx.compiler.tile.ir import (
    Access,
    Alloc,
    Attribute,
    Buffer,
    For,
    HbmAccess,
    HostCall,
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
)
from trnx.compiler.tile.text import BARE_KINDS
from trnx.core.dtypes import from_short_name
from trnx.core.errors import DTypeError, ParseError, message
from trnx.core.source import Source

T = TypeVar("T")

_TOKENS: Final = re.compile(
    r"""
      (?P<space>[ \t\r]+|\#[ ][^\n]*)
    | (?P<line>\n)
    | (?P<string>"(?:[^"\\]|\\.)*")
    | (?P<times>(?<=[0-9)])x)
    | (?P<float>\d+\.\d*(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+)
    | (?P<int>\d+)
    | (?P<name>[A-Za-z_][A-Za-z0-9_.']*)
    | (?P<sign><-|->|:=|//|>=|<=|==|!=|[][(){}<>=,;:@\#+*%-])
    """,
    re.VERBOSE,
)
_RELATIONS: Final = (">", ">=", "==", "!=", "<", "<=")


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    line: int


def _tokens(text: str, name: str) -> Iterator[_Token]:
    line, position = 1, 0
    while position < len(text):
        match = _TOKENS.match(text, position)
        if match is None:
            _fail(f"character {text[position]!r} has no meaning", name, line)
        kind = match.lastgroup or ""
        if kind == "line":
            line += 1
        elif kind != "space":
            yield _Token(kind, match.group(), line)
        position = match.end()
    yield _Token("end", "end of text", line)


def _fail(cause: str, name: str, line: int) -> NoReturn:
    remedy = "Write the form program_text() prints"
    raise ParseError(message(f"tile program text: {cause}", Source(name, line, ""), remedy))


def parse_program(text: str, name: str = "tile program") -> TileProgram:
    """The program that ``text`` describes.

    Args:
        text: what ``program_text`` prints.
        name: what to call the text in errors, such as a file name.

    Raises:
        ParseError: the text does not follow the grammar; it names the line.
    """
    parser = _Parser(text, name)
    program = parser.program()
    parser.end()
    return program


def parse_kernel(text: str, name: str = "kernel") -> Kernel:
    """The kernel that ``text`` (of ``kernel_text``) describes; ParseError as in parse_program."""
    parser = _Parser(text, name)
    kernel = parser.kernel()
    parser.end()
    return kernel


class _Parser:
    """Recursive descent over the tokens."""

    def __init__(self, text: str, name: str) -> None:
        self.name = name
        self.tokens = list(_tokens(text, name))
        self.position = 0
        self.tiles: set[str] = set()

    # Tokens -----------------------------------------------------------------------------------

    @property
    def token(self) -> _Token:
        return self.tokens[self.position]

    def fail(self, cause: str) -> NoReturn:
        _fail(cause, self.name, self.token.line)

    def at(self, text: str) -> bool:
        return self.token.text == text and self.token.kind != "string"

    def accept(self, text: str) -> bool:
        if self.at(text):
            self.position += 1
            return True
        return False

    def expect(self, text: str) -> None:
        if not self.accept(text):
            self.fail(f"expected '{text}', found '{self.token.text}'")

    def take(self, kind: str) -> str:
        token = self.token
        if token.kind != kind:
            self.fail(f"expected {kind}, found '{token.text}'")
        self.position += 1
        return token.text

    def word(self) -> str:
        if self.token.kind == "string":
            return str(json.loads(self.take("string")))
        return self.take("name")

    def integer(self) -> int:
        negative = self.accept("-")
        value = int(self.take("int"))
        return -value if negative else value

    def many(self, item: Callable[[], T], close: str) -> tuple[T, ...]:
        found: list[T] = []
        while not self.accept(close):
            if found:
                self.expect(",")
                if self.accept(close):
                    break
            found.append(item())
        return tuple(found)

    def end(self) -> None:
        if self.token.kind != "end":
            self.fail(f"'{self.token.text}' after the end")

    # Expressions ------------------------------------------------------------------------------

    def index(self) -> Index:
        value = scale(self.product(), -1) if self.accept("-") else self.product()
        while self.at("+") or self.at("-"):
            sign = -1 if self.take("sign") == "-" else 1
            value = add(value, scale(self.product(), sign))
        return value

    def product(self) -> Index:
        value = self.primary()
        while self.at("*") or self.at("//") or self.at("%"):
            operator = self.take("sign")
            other = self.primary()
            apply = {"*": mul, "//": floordiv, "%": mod}[operator]
            value = apply(value, other)
        return value

    def primary(self) -> Index:
        if self.token.kind == "int":
            return int(self.take("int"))
        if self.accept("("):
            value = self.index()
            self.expect(")")
            return value
        if self.at("min") or self.at("max"):
            pick = minimum if self.take("name") == "min" else maximum
            self.expect("(")
            left = self.index()
            self.expect(",")
            right = self.index()
            self.expect(")")
            return pick(left, right)
        return symbol(self.take("name"))

    # Program ----------------------------------------------------------------------------------

    def program(self) -> TileProgram:
        self.expect("tile")
        self.expect("program")
        name = self.word()
        self.expect("target")
        self.expect("=")
        target = self.word()
        registers: tuple[str, ...] = ()
        arena = 0
        if self.accept("registers"):
            self.expect("(")
            registers = self.many(self.word, ")")
        if self.accept("arena"):
            self.expect("=")
            arena = self.integer()
        self.expect("{")
        buffers: list[Buffer] = []
        kernels: list[Kernel] = []
        calls: list[KernelCall | HostCall] = []
        while self.at("buffer"):
            buffers.append(self.buffer())
        while self.at("kernel"):
            kernels.append(self.kernel())
        while self.at("call") or self.at("host_call"):
            calls.append(self.call())
        self.expect("return")
        outputs = self.many(self.word, "}")
        return TileProgram(
            name, target, tuple(buffers), tuple(kernels), tuple(calls), outputs, registers, arena
        )

    def shaped(self) -> tuple[str, np.dtype[Any], tuple[Index, ...], tuple[Index, ...] | None]:
        name = self.word()
        self.expect(":")
        dtype = self.dtype()
        self.expect("[")
        shape = self.many(self.index, "]")
        strides = None
        if self.accept("strides"):
            self.expect("(")
            strides = self.many(self.index, ")")
        return name, dtype, shape, strides

    def dtype(self) -> np.dtype[Any]:
        name = self.take("name")
        try:
            return from_short_name(name)
        except DTypeError:
            self.fail(f"'{name}' is no dtype")

    def buffer(self) -> Buffer:
        self.expect("buffer")
        name, dtype, shape, strides = self.shaped()
        kind = self.take("name")
        offset = self.integer() if self.accept("at") else None
        alias = self.word() if self.accept("alias") else None
        return Buffer(name, shape, dtype, kind, offset, alias, strides)

    def call(self) -> KernelCall | HostCall:
        if self.accept("call"):
            number = self.integer()
            self.expect("(")
            buffers = self.many(self.word, ")")
            registers = self.many(self.index, "]") if self.accept("[") else ()
            return KernelCall(number, buffers, registers)
        self.expect("host_call")
        function = self.word()
        self.expect("(")
        ins = self.many(self.word, ")")
        self.expect("->")
        self.expect("(")
        outs = self.many(self.word, ")")
        attrs = self.many(lambda: self.attribute({}), "]") if self.accept("[") else ()
        return HostCall(function, ins, outs, attrs)

    def kernel(self) -> Kernel:
        self.expect("kernel")
        self.integer()
        name = self.word()
        self.expect("(")
        params = self.many(self.param, ")")
        registers: tuple[str, ...] = ()
        if self.accept("registers"):
            self.expect("(")
            registers = self.many(self.word, ")")
        self.tiles = set()
        return Kernel(name, params, self.body(), registers)

    def param(self) -> Param:
        name, dtype, shape, strides = self.shaped()
        return Param(name, shape, dtype, self.take("name"), strides)

    # Statements -------------------------------------------------------------------------------

    def body(self) -> tuple[Statement, ...]:
        self.expect("{")
        found: list[Statement] = []
        while not self.accept("}"):
            found.append(self.statement())
        return tuple(found)

    def statement(self) -> Statement:
        if self.accept("for"):
            return self.loop()
        if self.accept("while"):
            condition = self.take("name")
            return While(condition, self.body())
        following = self.tokens[min(self.position + 1, len(self.tokens) - 1)].text
        if following == ":=":
            register = self.take("name")
            self.expect(":=")
            return RegisterMove(register, self.index())
        if following == "=":
            name = self.take("name")
            self.expect("=")
            if self.accept("load"):
                return RegisterLoad(name, self.access())
            return self.alloc(name)
        return self.instruction()

    def loop(self) -> For:
        index = self.take("name")
        self.expect("in")
        self.expect("range")
        self.expect("(")
        low = self.index()
        self.expect(",")
        high = self.index()
        step = self.integer() if self.accept(",") else 1
        self.expect(")")
        parallel = self.accept("parallel")
        return For(index, low, high, self.body(), step, parallel)

    def alloc(self, name: str) -> Alloc:
        memory = self.take("name")
        if memory not in ("sbuf", "psum"):
            self.fail(f"'{memory}' is no memory of a tile")
        dtype = self.dtype()
        self.expect("[")
        shape = self.many(self.integer, "]")
        copies = 1
        if self.token.kind == "name" and re.fullmatch(r"x\d+", self.token.text):
            copies = int(self.take("name")[1:])
        address = None
        if self.accept("at"):
            self.expect("(")
            first = self.integer()
            self.expect(",")
            address = (first, self.integer())
            self.expect(")")
        self.tiles.add(name)
        return Alloc(Tile(name, memory, shape, dtype, address, copies))

    def instruction(self) -> Instruction:
        op = self.take("name")
        if op not in isa.SPECS:
            self.fail(f"'{op}' is no instruction")
        outs: list[Access] = [self.access()]
        while self.accept(","):
            outs.append(self.access())
        self.expect("<-")
        ins: list[Operand] = []
        if self.operand_follows():
            ins.append(self.operand())
            while self.accept(","):
                ins.append(self.operand())
        kinds = {a.name: a.kind for a in isa.SPECS[op].attrs}
        attrs = self.many(lambda: self.attribute(kinds), "]") if self.accept("[") else ()
        engine = self.take("name") if self.accept("@") else ""
        number = self.integer() if self.accept("#") else -1
        deps: list[int] = []
        if self.accept("after"):
            deps.append(self.integer())
            while self.accept(","):
                deps.append(self.integer())
        return Instruction(op, tuple(outs), tuple(ins), attrs, engine, number, tuple(deps))

    def operand_follows(self) -> bool:
        """Whether an operand is next; an instruction without sources goes on with something else.

        The next statement may start right here, so a name counts only when a bracket follows.
        """
        token = self.token
        if token.kind in ("int", "float") or token.text in (
            "-",
            "_",
            "inf",
            "nan",
            "true",
            "false",
        ):
            return True
        following = self.tokens[min(self.position + 1, len(self.tokens) - 1)]
        if token.text == "reg":
            return following.text == "("
        return token.kind in ("name", "string") and following.text == "["

    def operand(self) -> Operand:
        if self.accept("_"):
            return None
        if self.token.kind == "name" and self.at("reg"):
            self.expect("reg")
            self.expect("(")
            value = self.index()
            self.expect(")")
            return RegisterValue(value)
        if self.token.kind == "string" or (
            self.token.kind == "name" and self.token.text not in ("inf", "nan", "true", "false")
        ):
            return self.access()
        value = self.value()
        if not isinstance(value, bool | int | float):
            self.fail("an operand is an access, a number, reg(...) or _")
        return value

    def access(self) -> Access:
        quoted = self.token.kind == "string"
        name = self.word()
        self.expect("[")
        first = self.index()
        if name in self.tiles and not quoted:
            start = self.integer() if self.accept("@") else 0
            self.expect(";")
            offset: Index = 0
            mark = self.position
            if not self.at("]"):
                value = self.span_or_index()
                if self.accept(";"):
                    assert not isinstance(value, Span)
                    offset = value
                else:
                    self.position = mark
            return TileAccess(name, start, first, offset, self.many(self.span, "]"))
        self.expect(";")
        spans = self.many(self.span, "]")
        if not self.accept("by"):
            return HbmAccess(name, first, spans)
        index = self.access()
        if not isinstance(index, TileAccess):
            self.fail("rows are indexed by a tile")
        return HbmAccess(name, first, spans, index)

    def span_or_index(self) -> Span | Index:
        value = self.index()
        if self.token.kind != "times":
            return value
        self.take("times")
        return Span(value, self.index())

    def span(self) -> Span:
        stride = self.primary()
        self.take("times")
        return Span(stride, self.primary())

    # Values -----------------------------------------------------------------------------------

    def attribute(self, kinds: dict[str, str]) -> tuple[str, Attribute]:
        name = self.word()
        self.expect("=")
        if kinds.get(name) in BARE_KINDS and self.token.kind == "name":
            return name, self.take("name")
        return name, self.value()

    def value(self) -> Any:
        token = self.token
        if token.kind == "string":
            return self.word()
        words: dict[str, Any] = {"true": True, "false": False, "none": None}
        if token.kind == "name" and token.text in words:
            return words[self.take("name")]
        if self.accept("{"):
            value = self.index()
            self.expect("}")
            return value
        if self.at("("):
            return self.tuple_or_predicate()
        negative = self.accept("-")
        if self.token.kind == "float":
            number = float(self.take("float"))
        elif self.accept("inf"):
            number = math.inf
        elif self.accept("nan"):
            # One object, so that equal texts give equal programs.
            number = math.nan
        else:
            return scale(int(self.take("int")), -1 if negative else 1)
        return -number if negative else number

    def tuple_or_predicate(self) -> Any:
        mark = self.position
        predicate = self.predicate()
        if predicate is not None:
            return predicate
        self.position = mark
        self.expect("(")
        return self.many(self.value, ")")

    def predicate(self) -> Predicate | None:
        """A parenthesised relation; None (position undefined) when it is a tuple."""
        depth = 0
        for token in self.tokens[self.position :]:
            depth += {"(": 1, ")": -1}.get(token.text, 0)
            if depth == 0:
                return None
            if depth == 1 and token.text in _RELATIONS:
                break
        self.expect("(")
        left = self.index()
        relation = self.take("sign")
        right = self.index()
        self.expect(")")
        return Predicate(left, relation, right)
