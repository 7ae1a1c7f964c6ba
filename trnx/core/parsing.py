r"""Text to Program: the inverse of :mod:`trnx.core.printing`.

Grammar (white space and ``# comments`` separate tokens; ``#`` directly before a digest is none)::

    text     = ["dims" range {"," range}] program
    range    = NAME ":" INT ".." [INT]
    program  = "program" NAME "(" [typed {"," typed}] ")" "{" {const} {equation} return "}"
    const    = "const" typed "#" DIGEST
    typed    = NAME ":" aval
    aval     = DTYPE "[" [size {"," size}] "]" ["~"]
    equation = (typed {"," typed} | "()") "=" NAME ["[" param {"," param} "]"] {atom}
    return   = "return" [atom {"," atom}]
    atom     = NAME | literal
    literal  = (NUMBER | "0x" HEX | "True" | "False" | "complex" "(" NUMBER "," NUMBER ")") ":" aval
    param    = NAME "=" value
    value    = sum | "None" | "True" | "False" | STRING | DTYPE | aval | program
             | "(" [value {"," value}] ")" | NAME "." NAME | NAME "(" [param {"," param}] ")"
             | "<" STRING ">"                               a name that stands for a user's rule
    sum      = product {("+" | "-") product}           sizes: ints and names of the dims header
    product  = factor {("*" | "//" | "%") factor}

Variables are visible from their definition to the end of their program; sub-programs see their own
variables only. Contents of constants are not part of the text and are found by their digest.
"""

from __future__ import annotations

import ast
import enum
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from trnx.core import dtypes
from trnx.core.avals import Aval
from trnx.core.dims import Dim, Size, dim
from trnx.core.errors import ParseError
from trnx.core.primitive import primitives
from trnx.core.printing import param_types
from trnx.core.program import (
    Atom,
    Equation,
    Literal,
    NamedAnnotation,
    Params,
    Program,
    Var,
    array_digest,
    literal,
)

_TOKEN = re.compile(
    r"""
    (?P<skip>\s+|\#\s[^\n]*|\#\n)
  | (?P<digest>\#\w+)
  | (?P<hex>0x[0-9a-f]+)
  | (?P<range>\.\.)
  | (?P<float>\d+\.\d*(?:e[+-]?\d+)?|\d+e[+-]?\d+)
  | (?P<int>\d+)
  | (?P<name>[^\W\d]\w*)
  | (?P<string>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")
  | (?P<symbol>//|[-+*%()\[\]{},:=~.<>])
    """,
    re.VERBOSE,
)


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    position: int


def _tokens(text: str) -> list[_Token]:
    found: list[_Token] = []
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            _fail(text, position, f"unexpected character {text[position]!r}")
        kind = match.lastgroup
        assert kind is not None
        # `1..4096` must not read as the float `1.` and `.4096`.
        if kind == "float" and text.startswith("..", position + match.group().find(".")):
            end = position + match.group().find(".")
            found.append(_Token("int", text[position:end], position))
            position = end
            continue
        if kind != "skip":
            found.append(_Token(kind, match.group(), position))
        position = match.end()
    found.append(_Token("end", "", position))
    return found


def _fail(text: str, position: int, cause: str) -> NoReturn:
    line = text.count("\n", 0, position) + 1
    start = text.rfind("\n", 0, position) + 1
    end = text.find("\n", position)
    shown = text[start : end if end >= 0 else len(text)].strip()
    raise ParseError(
        f"Program text, line {line}, column {position - start + 1}: {cause}, in `{shown}`. "
        "Correct the text, or print the program again."
    )


class _Parser:
    def __init__(self, text: str, constants: Iterable[Any]) -> None:
        self.text = text
        self.tokens = _tokens(text)
        self.index = 0
        self.dims: dict[str, Dim] = {}
        self.constants = {array_digest(array): array for array in constants}
        self.scope: dict[str, Var] = {}

    # Tokens ---------------------------------------------------------------------------------------

    @property
    def token(self) -> _Token:
        return self.tokens[self.index]

    def ahead(self, text: str, distance: int = 1) -> bool:
        index = self.index + distance
        return index < len(self.tokens) and self.tokens[index].text == text

    def fail(self, cause: str) -> NoReturn:
        _fail(self.text, self.token.position, cause)

    def take(self, kind: str) -> str:
        token = self.token
        if token.kind != kind:
            self.fail(f"expected {kind} but found {token.text or 'the end'!r}")
        self.index += 1
        return token.text

    def accept(self, text: str) -> bool:
        if self.token.text == text and self.token.kind in ("symbol", "name", "range"):
            self.index += 1
            return True
        return False

    def expect(self, text: str) -> None:
        if not self.accept(text):
            self.fail(f"expected {text!r} but found {self.token.text or 'the end'!r}")

    def listed(self, item: Callable[[], Any], end: str) -> list[Any]:
        """Items separated by commas up to `end`; a comma before it is allowed."""
        items: list[Any] = []
        while not self.accept(end):
            if items:
                self.expect(",")
                if self.accept(end):
                    break
            items.append(item())
        return items

    # Programs -------------------------------------------------------------------------------------

    def document(self) -> Program:
        if self.accept("dims"):
            self.range()
            while self.accept(","):
                self.range()
        program = self.program()
        if self.token.kind != "end":
            self.fail(f"expected the end but found {self.token.text!r}")
        return program

    def range(self) -> None:
        name = self.take("name")
        if name in self.dims:
            self.fail(f"size {name} has two ranges")
        self.expect(":")
        low = int(self.take("int"))
        self.take("range")
        high = int(self.take("int")) if self.token.kind == "int" else None
        self.dims[name] = dim(name, min=low, max=high)

    def program(self) -> Program:
        outer, self.scope = self.scope, {}
        self.expect("program")
        name = self.take("name")
        self.expect("(")
        inputs = self.listed(self.typed, ")")
        self.expect("{")
        constants: list[tuple[Var, Any]] = []
        while self.accept("const"):
            constants.append((self.typed(), self.constant()))
        equations: list[Equation] = []
        while not self.accept("return"):
            equations.append(self.equation())
        outputs: list[Atom] = []
        if not self.accept("}"):
            outputs.append(self.atom())
            while self.accept(","):
                outputs.append(self.atom())
            self.expect("}")
        self.scope = outer
        return Program(name, tuple(inputs), tuple(constants), tuple(equations), tuple(outputs))

    def constant(self) -> Any:
        digest = self.token.text[1:]
        matches = [array for full, array in self.constants.items() if full.startswith(digest)]
        if self.token.kind == "digest" and len(matches) != 1:
            self.fail(f"{len(matches)} of the given constants have the digest {digest}")
        self.take("digest")
        return matches[0]

    def typed(self) -> Var:
        name = self.take("name")
        if name in self.scope:
            self.index -= 1
            self.fail(f"variable {name} is defined twice")
        self.expect(":")
        var = self.scope[name] = Var(self.aval())
        return var

    def equation(self) -> Equation:
        outputs: list[Var] = []
        if self.accept("("):
            self.expect(")")
        else:
            outputs.append(self.typed())
            while self.accept(","):
                outputs.append(self.typed())
        self.expect("=")
        primitive = primitives.get(self.token.text)
        if primitive is None:
            self.fail(f"no primitive is named {self.token.text!r}")
        self.take("name")
        # Outputs are not visible to the equation's own operands.
        hidden = {name: var for name, var in self.scope.items() if var in outputs}
        for name in hidden:
            del self.scope[name]
        params = dict(self.listed(self.param, "]")) if self.accept("[") else {}
        inputs: list[Atom] = []
        while self.starts_atom():
            inputs.append(self.atom())
        self.scope.update(hidden)
        return Equation(primitive, tuple(inputs), tuple(outputs), Params(params, primitive.name))

    def starts_atom(self) -> bool:
        token = self.token
        if token.kind in ("int", "float", "hex") or token.text == "-":
            return True
        if token.kind != "name" or token.text == "return":
            return False
        return token.text in _LITERAL_NAMES or not self.ahead(":")

    def atom(self) -> Atom:
        token = self.token
        if token.kind == "name" and token.text not in _LITERAL_NAMES:
            var = self.scope.get(token.text)
            if var is None:
                self.fail(f"variable {token.text} is not defined here")
            self.index += 1
            return var
        return self.literal()

    def literal(self) -> Literal:
        token = self.token
        if token.kind == "hex":
            self.index += 1
            bits = bytes.fromhex(token.text[2:])[::-1]
            aval = self.literal_type()
            if len(bits) != aval.dtype.itemsize:
                self.fail(f"{token.text} has not the size of {aval}")
            return Literal(np.frombuffer(bits, aval.dtype)[0], aval)
        value = self.number()
        aval = self.literal_type()
        is_exact = not dtypes.is_inexact(aval.dtype)
        if is_exact and not isinstance(value, int):
            self.fail(f"{value!r} is no value of {aval}")
        return literal(value, aval)

    def literal_type(self) -> Aval:
        self.expect(":")
        return self.aval()

    def number(self) -> bool | int | float | complex:
        negative = self.accept("-")
        token = self.token
        self.index += 1
        if token.kind == "int":
            return -int(token.text) if negative else int(token.text)
        if token.kind == "float" or token.text in ("inf", "nan"):
            return -float(token.text) if negative else float(token.text)
        if token.text in ("True", "False") and not negative:
            return token.text == "True"
        if token.text == "complex" and not negative:
            self.expect("(")
            real = self.number()
            self.expect(",")
            imaginary = self.number()
            self.expect(")")
            # `complex(real, imaginary)` would lose the sign of a zero real part for some values.
            value = np.empty((), np.complex128)
            value.real, value.imag = real, imaginary
            return complex(value[()])
        self.index -= 1
        self.fail(f"expected a value but found {token.text or 'the end'!r}")

    # Types and parameter values -------------------------------------------------------------------

    def aval(self) -> Aval:
        name = self.token.text
        if name not in _DTYPE_NAMES:
            self.fail(f"expected a type but found {name or 'the end'!r}")
        self.index += 1
        self.expect("[")
        shape = tuple(self.listed(self.size, "]"))
        return Aval(shape, dtypes.from_short_name(name), self.accept("~"))

    def size(self) -> Size:
        value = self.value()
        if isinstance(value, bool) or not isinstance(value, int | Dim):
            self.index -= 1
            self.fail(f"{value!r} is no size")
        return value

    def param(self) -> tuple[str, Any]:
        name = self.take("name")
        self.expect("=")
        return name, self.value()

    def value(self) -> Any:
        left = self.product()
        while self.token.text in ("+", "-") and self.token.kind == "symbol":
            operator = self.take("symbol")
            right = self.product()
            left = left + right if operator == "+" else left - right
        return left

    def product(self) -> Any:
        left = self.factor()
        while self.token.text in ("*", "//", "%") and self.token.kind == "symbol":
            operator = self.take("symbol")
            right = self.factor()
            if operator == "*":
                left = left * right
            else:
                left = left // right if operator == "//" else left % right
        return left

    def factor(self) -> Any:
        token = self.token
        if self.accept("-"):
            return -self.factor()
        if token.kind in ("int", "float") or token.text in _LITERAL_NAMES:
            return self.number()
        if token.kind == "string":
            self.index += 1
            return ast.literal_eval(token.text)
        if self.accept("("):
            return self.parenthesis()
        if self.accept("<"):
            name = ast.literal_eval(self.take("string"))
            self.expect(">")
            return NamedAnnotation(name)
        if token.kind == "name":
            return self.named()
        self.fail(f"expected a value but found {token.text or 'the end'!r}")

    def parenthesis(self) -> Any:
        if self.accept(")"):
            return ()
        first = self.value()
        if self.accept(")"):
            return first
        self.expect(",")
        return (first, *self.listed(self.value, ")"))

    def named(self) -> Any:
        name = self.token.text
        if name == "program":
            return self.program()
        if name in _DTYPE_NAMES:
            if self.ahead("["):
                return self.aval()
            self.index += 1
            return dtypes.from_short_name(name)
        self.index += 1
        if name == "None":
            return None
        if name in self.dims:
            return self.dims[name]
        cls = param_types.get(name)
        if cls is not None and self.accept("."):
            assert issubclass(cls, enum.Enum)
            return cls[self.take("name")]
        if cls is not None:
            self.expect("(")
            return cls(**dict(self.listed(self.param, ")")))
        self.index -= 1
        self.fail(f"{name} is neither a size of the dims line nor a registered parameter type")


_LITERAL_NAMES = frozenset({"True", "False", "inf", "nan", "complex"})
_DTYPE_NAMES = frozenset(map(dtypes.short_name, dtypes.ALL_DTYPES))


def parse_program(text: str, constants: Iterable[Any] = ()) -> Program:
    """The program of a text.

    Args:
        text: what ``str(program)`` gives.
        constants: the captured arrays, in any order; found by digest.

    Returns:
        A program that is `equal` to the printed one. Sources are not part of the text.

    Raises:
        ParseError: the text does not follow the grammar; gives line, column and the line.
    """
    return _Parser(text, constants).document()


def parse_aval(text: str) -> Aval:
    """The type of a text such as ``f32[2,3]`` or ``f32[]~`` (static sizes)."""
    parser = _Parser(text, ())
    aval = parser.aval()
    if parser.token.kind != "end":
        parser.fail("expected the end of the type")
    return aval
