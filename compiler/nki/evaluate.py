"""Evaluates the expressions of a kernel's source: numbers, loop indices, tensors, NKI names."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from trnx.compiler.nki.names import OPERATOR_NAMES
from trnx.compiler.nki.values import (
    Member,
    Module,
    Operator,
    Register,
    module_attribute,
    negated,
    refuse,
    view_attribute,
)
from trnx.compiler.tile.build import KernelBuilder, predicate
from trnx.compiler.tile.expr import Expr, add, floordiv, maximum, minimum, mod, mul, scale
from trnx.compiler.tile.ir import Predicate
from trnx.compiler.tile.views import HbmView, TileView
from trnx.core.source import Source, use_source

_ARITHMETIC: Final[dict[type[ast.operator], tuple[Callable[..., Any], Callable[..., Any]]]] = {
    ast.Add: (add, operator.add),
    ast.Sub: (lambda a, b: add(a, scale(b, -1)), operator.sub),
    ast.Mult: (mul, operator.mul),
    ast.FloorDiv: (floordiv, operator.floordiv),
    ast.Mod: (mod, operator.mod),
}
_NUMBERS: Final[dict[type[ast.operator], Callable[..., Any]]] = {
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
}
_COMPARE: Final[dict[type[ast.cmpop], tuple[str, Callable[[Any, Any], bool]]]] = {
    ast.Gt: (">", operator.gt),
    ast.GtE: (">=", operator.ge),
    ast.Eq: ("==", operator.eq),
    ast.NotEq: ("!=", operator.ne),
    ast.Lt: ("<", operator.lt),
    ast.LtE: ("<=", operator.le),
}


class Evaluator:
    """Evaluates expressions; statements are in ``_Reader``."""

    def __init__(
        self, file: str, function: str, builder: KernelBuilder, names: dict[str, Any]
    ) -> None:
        self.file = file
        self.function = function
        self.builder = builder
        self.names = names

    @contextmanager
    def at(self, node: ast.AST) -> Iterator[None]:
        """Errors and instructions inside belong to the line of ``node``."""
        with use_source(Source(self.file, getattr(node, "lineno", 0), self.function)):
            yield

    def lookup(self, name: str) -> Any:
        if name in self.names:
            return self.names[name]
        if name in ("range", "min", "max", "len", "int", "float", "abs", "tuple", "list"):
            return Member("python", name)
        refuse(f"name '{name}' is not defined", "Define it in the kernel or at module level")

    def value(self, node: ast.expr, hint: str = "") -> Any:
        """The value of an expression; ``hint`` names what a call allocates."""
        method = getattr(self, f"_{type(node).__name__}", None)
        if method is None:
            refuse(f"{type(node).__name__} expressions", "Use calls, slices and arithmetic")
        if isinstance(node, ast.Call):
            return self.call(node, hint)
        return method(node)

    def _Constant(self, node: ast.Constant) -> Any:
        return node.value

    def _Name(self, node: ast.Name) -> Any:
        return self.lookup(node.id)

    def _Tuple(self, node: ast.Tuple) -> Any:
        return tuple(self.value(e) for e in node.elts)

    def _List(self, node: ast.List) -> Any:
        return [self.value(e) for e in node.elts]

    def _Attribute(self, node: ast.Attribute) -> Any:
        base = self.value(node.value)
        if isinstance(base, Module):
            return module_attribute(base, node.attr)
        if isinstance(base, HbmView | TileView):
            return view_attribute(base, node.attr)
        if isinstance(base, list) and node.attr == "append":
            return base.append
        refuse(f"attribute '{node.attr}' of {type(base).__name__}", "Use a tensor or NKI module")

    def _Subscript(self, node: ast.Subscript) -> Any:
        base = self.value(node.value)
        key = self.value(node.slice)
        if isinstance(base, HbmView | TileView):
            if isinstance(key, Register):
                refuse("indexing with a register", "Use .ap(scalar_offset=register)")
            return base[key]
        if isinstance(base, tuple | list | dict):
            if isinstance(key, Expr):
                refuse("a list indexed by a loop index", "Read the kernel with unroll=True")
            return base[key]
        refuse(f"{type(base).__name__} cannot be indexed", "Index tensors, tuples and lists")

    def _Slice(self, node: ast.Slice) -> slice:
        lower, upper, step = (
            None if part is None else self.value(part)
            for part in (node.lower, node.upper, node.step)
        )
        return slice(lower, upper, step)

    def _UnaryOp(self, node: ast.UnaryOp) -> Any:
        operand = self.value(node.operand)
        if isinstance(node.op, ast.USub):
            return negated(operand)
        if isinstance(node.op, ast.Not) and isinstance(operand, bool):
            return not operand
        if isinstance(node.op, ast.UAdd | ast.Invert) and isinstance(operand, int):
            return +operand if isinstance(node.op, ast.UAdd) else ~operand
        refuse(f"{type(node.op).__name__} of {type(operand).__name__}", "Use numbers")

    def _BinOp(self, node: ast.BinOp) -> Any:
        left, right = self.value(node.left), self.value(node.right)
        if isinstance(left, Register) or isinstance(right, Register):
            refuse("arithmetic on a register", "Compute in a tile and load it into a register")
        kind = type(node.op)
        if isinstance(left, Expr) or isinstance(right, Expr):
            whole = isinstance(left, Expr | int) and isinstance(right, Expr | int)
            if kind not in _ARITHMETIC or not whole:
                refuse(f"{kind.__name__} on a loop index", "Use + - * // % with integers")
            return _ARITHMETIC[kind][0](left, right)
        if kind in _ARITHMETIC:
            plain = (int, float, tuple, list, str)
            if isinstance(left, plain) and isinstance(right, plain):
                return _ARITHMETIC[kind][1](left, right)
        elif kind in _NUMBERS and isinstance(left, int | float) and isinstance(right, int | float):
            return _NUMBERS[kind](left, right)
        refuse(
            f"{kind.__name__} of {type(left).__name__} and {type(right).__name__}",
            "Compute on tensors with nisa instructions",
        )

    def _Compare(self, node: ast.Compare) -> Any:
        if len(node.ops) != 1:
            refuse("a chained comparison", "Write two comparisons joined by 'and'")
        left, right = self.value(node.left), self.value(node.comparators[0])
        kind = type(node.ops[0])
        if kind not in _COMPARE:
            refuse(f"comparison {kind.__name__}", "Use == != < <= > >=")
        relation, compare = _COMPARE[kind]
        if isinstance(left, Expr) or isinstance(right, Expr):
            if isinstance(left, Expr | int) and isinstance(right, Expr | int):
                return predicate(left, relation, right)
            return kind is ast.NotEq
        if isinstance(left, Register) or isinstance(right, Register):
            refuse("a comparison of registers", "Use nl.while_loop on a loaded flag")
        if isinstance(left, list) and isinstance(right, tuple):
            left = tuple(left)
        if isinstance(left, tuple) and isinstance(right, list):
            right = tuple(right)
        return compare(left, right)

    def _BoolOp(self, node: ast.BoolOp) -> Any:
        values = [self.value(v) for v in node.values]
        if any(isinstance(v, Predicate | Expr | Register) for v in values):
            refuse("'and'/'or' on loop indices", "Read the kernel with unroll=True")
        combine = all if isinstance(node.op, ast.And) else any
        return combine(bool(v) for v in values)

    def _IfExp(self, node: ast.IfExp) -> Any:
        test = self.value(node.test)
        if not isinstance(test, bool | int):
            refuse("a choice that depends on a loop index", "Read the kernel with unroll=True")
        return self.value(node.body if test else node.orelse)

    def _Call(self, node: ast.Call) -> Any:
        return self.call(node, "")

    def call(self, node: ast.Call, hint: str) -> Any:
        function = self.value(node.func)
        args: list[Any] = []
        for arg in node.args:
            if isinstance(arg, ast.Starred):
                args.extend(self.value(arg.value))
            else:
                args.append(self.value(arg))
        kwargs = {k.arg: self.value(k.value) for k in node.keywords if k.arg is not None}
        if isinstance(function, Member):
            return self.member(function, args, kwargs, hint)
        if isinstance(function, Operator):
            name = OPERATOR_NAMES[function.name]
            refuse(f"nl.{name}() of tensors", f"Use a nisa instruction with op=nl.{name}")
        if callable(function):
            return function(*args, **kwargs)
        refuse(f"{type(function).__name__} is not callable", "Call nl, nisa or helper functions")

    def member(self, function: Member, args: list[Any], kwargs: dict[str, Any], hint: str) -> Any:
        if function.kind == "python":
            return python_call(function.name, args)
        refuse(f"{function.name} outside a kernel", "Call it inside a @nki.jit function")


def python_call(name: str, args: Sequence[Any]) -> Any:
    if name == "range":
        low, high, step = (0, args[0], 1) if len(args) == 1 else (*args, 1)[:3]
        if isinstance(low, Register) or isinstance(high, Register):
            refuse("range() of a register", "Use nl.fori_loop")
        return Range(low, high, step)
    if name in ("min", "max"):
        values = list(args[0]) if len(args) == 1 else list(args)
        fold = minimum if name == "min" else maximum
        if not any(isinstance(v, Expr) for v in values):
            return min(values) if name == "min" else max(values)
        result = values[0]
        for value in values[1:]:
            result = fold(result, value)
        return result
    if name in ("int", "float", "abs") and isinstance(args[0], Expr | Register):
        refuse(f"{name}() of a loop index", "Use integer arithmetic")
    functions: dict[str, Callable[..., Any]] = {
        "len": len,
        "int": int,
        "float": float,
        "abs": abs,
        "tuple": tuple,
        "list": list,
    }
    return functions[name](*args)


@dataclass(frozen=True, slots=True)
class Range:
    """``range(low, high, step)`` with bounds that may be loop indices."""

    low: Any
    high: Any
    step: int
