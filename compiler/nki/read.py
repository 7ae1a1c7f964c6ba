"""An NKI-compatible front end: reads kernel source by its syntax tree into tile kernels.

Loops over ``range`` become static loops of the kernel, ``nl.fori_loop`` and ``nl.while_loop``
device loops; everything else of the Python subset (constants, tuples, helper functions, ``if`` on
constants, ``min``/``max`` tails) is evaluated while reading. With ``unroll=True`` static loops run
at reading time, as NKI's own tracer runs them, and then ``if`` may depend on their indices.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from trnx.compiler.nki import calls
from trnx.compiler.nki.evaluate import Evaluator, Range, python_call
from trnx.compiler.nki.names import (
    BOOL_ALIAS,
    HELPERS,
    PARAMETERS,
    function_tree,
    helper_tree,
)
from trnx.compiler.nki.values import (
    MODULES,
    Column,
    Function,
    Member,
    Module,
    Register,
    Repeated,
    TensorType,
    module_attribute,
    refuse,
)
from trnx.compiler.tile.analysis import accesses
from trnx.compiler.tile.build import KernelBuilder
from trnx.compiler.tile.expr import add
from trnx.compiler.tile.ir import HbmAccess, Kernel, Param, Predicate, walk
from trnx.compiler.tile.views import HbmView
from trnx.core.dtypes import bool_
from trnx.core.errors import ParseError, message
from trnx.core.source import Source, use_source

__all__ = ["ReadKernel", "TensorType", "read_kernel", "read_kernels"]


@dataclass(frozen=True, slots=True)
class ReadKernel:
    """A kernel, and the parameters its source returns, in order."""

    kernel: Kernel
    returns: tuple[str, ...]


def read_kernels(
    source: str, *, file: str = "<nki>", target: str = "trn2", unroll: bool = False
) -> tuple[Kernel, ...]:
    """Every ``@nki.jit`` function of a module whose arguments are declared by asserts.

    Args:
        source: module text, such as ``emit.program_source`` prints.
        file: name shown in errors.
        target: target name for the builder.
        unroll: run static loops at reading time.

    Raises:
        ParseError: the text is no Python.
        UnsupportedError: a statement or call is outside the subset; it names the line.
    """
    tree = _parse(source, file)
    module = _Module(tree, file)
    return tuple(
        _Reader(module, node, target, unroll).read({}).kernel
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and _is_kernel(node)
    )


def read_kernel(
    source: str,
    arguments: Mapping[str, Any],
    *,
    name: str | None = None,
    scope: Mapping[str, Any] | None = None,
    file: str = "<nki>",
    first_line: int = 1,
    target: str = "trn2",
    unroll: bool = False,
) -> ReadKernel:
    """One kernel for given arguments.

    Args:
        source: module or function text with the kernel.
        arguments: ``TensorType`` for each HBM argument, plain values for compile-time ones.
        name: function name; the only ``@nki.jit`` function (or the only function) when None.
        scope: values of global names that ``source`` does not define.
        file: name shown in errors.
        first_line: line of the first line of ``source`` in ``file``.
        target: target name for the builder.
        unroll: run static loops at reading time.

    Raises:
        ParseError: the text is no Python.
        UnsupportedError: a statement or call is outside the subset; it names the line.
    """
    tree = _parse(source, file)
    ast.increment_lineno(tree, first_line - 1)
    functions = [n for n in tree.body if isinstance(n, ast.FunctionDef)]
    kernels = [n for n in functions if _is_kernel(n)] or functions
    chosen = [n for n in kernels if name in (None, n.name)]
    if len(chosen) != 1:
        with use_source(Source(file, first_line, "")):
            refuse(f"found {len(chosen)} kernels", "Name one @nki.jit function")
    module = _Module(tree, file, scope)
    return _Reader(module, chosen[0], target, unroll).read(arguments)


def _parse(source: str, file: str) -> ast.Module:
    try:
        return ast.parse(source)
    except SyntaxError as error:
        where = Source(file, error.lineno or 0, "")
        raise ParseError(message(f"NKI kernel: {error.msg}", where, "Fix the syntax")) from None


def _is_kernel(node: ast.FunctionDef) -> bool:
    for decorator in node.decorator_list:
        called = decorator.func if isinstance(decorator, ast.Call) else decorator
        if isinstance(called, ast.Attribute) and called.attr == "jit":
            return True
        if isinstance(called, ast.Name) and called.id == "jit":
            return True
    return False


class _Module:
    """Global names of a source text: imports, constants, functions."""

    def __init__(self, tree: ast.Module, file: str, scope: Mapping[str, Any] | None = None) -> None:
        self.file = file
        self.names: dict[str, Any] = dict(scope or {})
        for node in tree.body:
            if isinstance(node, ast.Import | ast.ImportFrom):
                self.names |= dict(_imports(node))
        evaluator = Evaluator(file, "", KernelBuilder("module"), self.names)
        for node in tree.body:
            with evaluator.at(node):
                self._statement(node, evaluator)

    def _statement(self, node: ast.stmt, evaluator: Evaluator) -> None:
        if isinstance(node, ast.FunctionDef):
            known = node.name in HELPERS and function_tree(node) == helper_tree(node.name)
            value = Member("helper", node.name) if known else Function(node, self.names)
            self.names[node.name] = value
        elif isinstance(node, ast.Assign):
            value = evaluator.value(node.value)
            for target in node.targets:
                if not isinstance(target, ast.Name):
                    refuse("an assignment to a tuple at module level", "Assign one name at a time")
                # The printed alias tells a bool tile from a uint8 one.
                self.names[target.id] = bool_ if target.id == BOOL_ALIAS else value
        elif not isinstance(node, ast.Import | ast.ImportFrom | ast.Expr):
            refuse(f"{type(node).__name__} at module level", "Keep imports, constants, functions")


def _imports(node: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, Any]]:
    for alias in node.names:
        if isinstance(node, ast.Import):
            if alias.name in MODULES:
                yield alias.asname or alias.name.split(".")[0], Module(MODULES[alias.name])
        elif node.module is not None:
            path = f"{node.module}.{alias.name}"
            if path in MODULES:
                yield alias.asname or alias.name, Module(MODULES[path])
            elif node.module in MODULES:
                found = module_attribute(Module(MODULES[node.module]), alias.name)
                yield alias.asname or alias.name, found


class _Returned(Exception):
    """Carries the value of a ``return`` out of the statements of a function."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value


class _Reader(Evaluator):
    """Executes a kernel's statements on a ``KernelBuilder``."""

    def __init__(self, module: _Module, node: ast.FunctionDef, target: str, unroll: bool) -> None:
        builder = KernelBuilder(
            node.name, target, source=Source(module.file, node.lineno, node.name)
        )
        super().__init__(module.file, node.name, builder, dict(module.names))
        self.module = module
        self.node = node
        self.unroll = unroll
        self.pending: dict[str, TensorType] = {}

    def read(self, arguments: Mapping[str, Any]) -> ReadKernel:
        with self.at(self.node):
            self.bind_arguments(arguments)
        result: Any = None
        try:
            self.statements(self.node.body)
        except _Returned as returned:
            result = returned.value
        for name in list(self.pending):
            self.lookup(name)
        kernel = self.builder.finish()
        written = {
            access.buffer
            for statement in walk(kernel.body)
            for access, writes in accesses(statement)
            if writes and isinstance(access, HbmAccess)
        }
        params = tuple(_with_role(p, p.name in written) for p in kernel.params)
        return ReadKernel(replace(kernel, params=params), self.returned(result))

    def returned(self, result: Any) -> tuple[str, ...]:
        values = () if result is None else result if isinstance(result, tuple) else (result,)
        with self.at(self.node):
            for value in values:
                if not isinstance(value, HbmView):
                    refuse("the kernel returns something else than HBM tensors", "Return outputs")
        return tuple(v.param.name for v in values)

    def bind_arguments(self, arguments: Mapping[str, Any]) -> None:
        spec = self.node.args
        if spec.vararg or spec.kwarg or spec.posonlyargs or spec.kwonlyargs:
            refuse("'*' or '/' in the signature", "Use plain arguments")
        names = [a.arg for a in spec.args]
        defaults = dict(zip(names[len(names) - len(spec.defaults) :], spec.defaults, strict=True))
        asserted = self.asserted(names)
        for name in names:
            if name in arguments:
                value = arguments[name]
            elif name in asserted:
                value = asserted[name]
            elif name in defaults:
                value = self.value(defaults[name])
            else:
                refuse(
                    f"argument '{name}' of {self.node.name} has no type",
                    f"Write `assert {name}.shape == (...)` and `assert {name}.dtype == nl....`",
                )
            self.names.pop(name, None)
            if isinstance(value, TensorType):
                self.pending[name] = value
            else:
                self.names[name] = value

    def asserted(self, names: Sequence[str]) -> dict[str, TensorType]:
        """Types of arguments that the body asserts by shape and dtype."""
        facts: dict[tuple[str, str], Any] = {}
        tests = [s.test for s in self.node.body if isinstance(s, ast.Assert)]
        parts = [p for t in tests for p in (t.values if isinstance(t, ast.BoolOp) else [t])]
        for test in parts:
            if (
                isinstance(test, ast.Compare)
                and isinstance(test.left, ast.Attribute)
                and isinstance(test.left.value, ast.Name)
                and test.left.value.id in names
                and test.left.attr in ("shape", "dtype")
                and isinstance(test.comparators[0], ast.Tuple | ast.Attribute | ast.Name)
                and not _mentions(test.comparators[0], names)
            ):
                key = (test.left.value.id, test.left.attr)
                facts[key] = self.value(test.comparators[0])
        return {
            name: TensorType(tuple(facts[name, "shape"]), facts[name, "dtype"])
            for name in names
            if (name, "shape") in facts and (name, "dtype") in facts
        }

    def lookup(self, name: str) -> Any:
        if name in self.pending:
            declared = self.pending.pop(name)
            self.names[name] = self.builder.param(name, declared.shape, declared.dtype, "in")
        return super().lookup(name)

    # Statements -------------------------------------------------------------------------------

    def statements(self, body: Sequence[ast.stmt]) -> None:
        for statement in body:
            with self.at(statement):
                self.statement(statement)

    def statement(self, node: ast.stmt) -> None:
        if isinstance(node, ast.Expr):
            if not isinstance(node.value, ast.Constant):
                self.value(node.value)
        elif isinstance(node, ast.Assign):
            hint = node.targets[0].id if isinstance(node.targets[0], ast.Name) else ""
            value = self.value(node.value, hint)
            for target in node.targets:
                self.assign(target, value)
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            value = ast.BinOp(ast.Name(node.target.id, ast.Load()), node.op, node.value)
            self.assign(node.target, self.value(ast.copy_location(value, node)))
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            hint = node.target.id if isinstance(node.target, ast.Name) else ""
            self.assign(node.target, self.value(node.value, hint))
        elif isinstance(node, ast.For):
            self.loop(node)
        elif isinstance(node, ast.If):
            test = self.value(node.test)
            if not isinstance(test, bool | int):
                refuse("'if' on a loop index", "Read the kernel with unroll=True")
            self.statements(node.body if test else node.orelse)
        elif isinstance(node, ast.Return):
            raise _Returned(None if node.value is None else self.value(node.value))
        elif isinstance(node, ast.Assert):
            test = self.value(node.test)
            if test is False:
                text = self.value(node.msg) if node.msg is not None else ast.unparse(node.test)
                refuse(f"assertion failed: {text}", "Call it with arguments that fulfil it")
            if isinstance(test, Predicate):
                refuse("an assertion about a loop index", "Read the kernel with unroll=True")
        elif isinstance(node, ast.FunctionDef):
            self.names[node.name] = Function(node, self.names)
        elif not isinstance(node, ast.Pass):
            refuse(f"{type(node).__name__} statements", "Use for, if, calls and assignments")

    def assign(self, target: ast.expr, value: Any) -> None:
        if isinstance(target, ast.Name):
            self.names[target.id] = value
        elif isinstance(target, ast.Tuple | ast.List):
            values = tuple(value)
            if len(values) != len(target.elts):
                refuse(f"{len(values)} values for {len(target.elts)} names", "Match their number")
            for element, item in zip(target.elts, values, strict=True):
                self.assign(element, item)
        else:
            refuse("an assignment to a slice", "Write with a nisa instruction")

    def loop(self, node: ast.For) -> None:
        over = self.value(node.iter)
        if node.orelse:
            refuse("'else' of a loop", "Put it after the loop")
        if not isinstance(over, Range):
            if not isinstance(over, tuple | list):
                refuse(f"a loop over {type(over).__name__}", "Loop over range()")
            for item in over:
                self.assign(node.target, item)
                self.statements(node.body)
            return
        if not isinstance(node.target, ast.Name):
            refuse("a loop with several targets over range()", "Use one index")
        name = node.target.id
        if self.unroll:
            for value in range(over.low, over.high, over.step):
                self.names[name] = value
                self.statements(node.body)
            return
        before = dict(self.names)
        with self.builder.loop(name, over.low, over.high, over.step) as index:
            self.names[name] = index
            self.statements(node.body)
        self.check_carried(before, name)

    def check_carried(self, before: Mapping[str, Any], index: str) -> None:
        """Names keep their values over a loop; names made inside it end with it."""
        for name, value in list(self.names.items()):
            if name not in before:
                del self.names[name]
            elif name != index and value is not before[name] and value != before[name]:
                refuse(
                    f"'{name}' changes from one iteration to the next",
                    "Read the kernel with unroll=True, or keep the value in a tile",
                )
        if index in before:
            self.names[index] = before[index]

    # Calls ------------------------------------------------------------------------------------

    def call(self, node: ast.Call, hint: str) -> Any:
        if isinstance(node.func, ast.Name) and isinstance(self.names.get(node.func.id), Function):
            function = self.names[node.func.id]
            args = [self.value(a) for a in node.args]
            kwargs = {k.arg: self.value(k.value) for k in node.keywords if k.arg is not None}
            return self.inline(function, args, kwargs)
        return super().call(node, hint)

    def inline(self, function: Function, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """The value a helper function returns for these arguments."""
        spec = function.node.args
        names = [a.arg for a in spec.args]
        defaults = zip(names[len(names) - len(spec.defaults) :], spec.defaults, strict=True)
        bound = {name: self.value(default) for name, default in defaults}
        bound |= dict(zip(names, args, strict=False)) | dict(kwargs)
        missing = [n for n in names if n not in bound]
        if missing or len(args) > len(names) or set(bound) - set(names):
            refuse(f"wrong arguments for '{function.node.name}'", f"It takes {', '.join(names)}")
        outer, self.names = self.names, {**function.scope, **bound}
        try:
            self.statements(function.node.body)
        except _Returned as returned:
            return returned.value
        finally:
            self.names = outer
        return None

    def member(self, function: Member, args: list[Any], kwargs: dict[str, Any], hint: str) -> Any:
        if function.kind == "nki.isa":
            if function.name.startswith("register_"):
                return self.register_call(function.name, args, kwargs, hint)
            calls.call_isa(self.builder, function.name, args, kwargs)
            return None
        if function.kind == "nki.language":
            return self.language(function.name, args, kwargs, hint)
        if function.kind == "helper":
            return self.helper(function.name, args, kwargs)
        return super().member(function, args, kwargs, hint)

    def helper(self, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if name == "column":
            return Column(args[0])
        if name == "repeat":
            return Repeated(args[0])
        calls.scatter_add(self.builder, *args, **kwargs)
        return None

    def language(self, name: str, args: list[Any], kwargs: dict[str, Any], hint: str) -> Any:
        if name == "ndarray":
            return calls.ndarray(self.builder, hint, *args, **kwargs)
        if name in ("zeros", "full"):
            value = 0 if name == "zeros" else kwargs.pop("fill_value", None)
            if value is None:
                value = args.pop(1)
            tile = calls.ndarray(self.builder, hint, *args, **kwargs)
            self.builder.memset(tile, value)
            return tile
        if name in ("affine_range", "static_range", "sequential_range"):
            return python_call("range", args)
        if name == "ds":
            return slice(args[0], add(args[0], args[1]))
        if name == "fori_loop":
            return self.fori_loop(*args, **kwargs)
        if name == "while_loop":
            return self.while_loop(*args, **kwargs)
        refuse(
            f"nl.{name} is not supported",
            "Use nl.ndarray, nl.fori_loop, nl.while_loop and nisa instructions",
        )

    def fori_loop(self, lower: Any, upper: Any, body_fun: Function, step: int = 1) -> None:
        index_name = body_fun.node.args.args[0].arg
        low, high = calls.register_value(lower), calls.register_value(upper)
        with self.builder.loop(index_name, low, high, step) as index:
            self.inline(body_fun, [Register(index)], {})

    def while_loop(self, init: Any, body_fun: Function) -> None:
        if not isinstance(init, Register):
            refuse("nl.while_loop without a register", "Pass a loaded register")
        with self.builder.while_loop(init.value):
            result = self.inline(body_fun, [init], {})
            if not isinstance(result, Register):
                refuse("a while_loop body returns no register", "Return the next condition")
            if result != init:
                self.builder.move_register(init.value, result.value)

    def register_call(self, name: str, args: list[Any], kwargs: dict[str, Any], hint: str) -> Any:
        if name == "register_alloc":
            value = args[0] if args else kwargs.get("x")
            if value is None:
                return Register(self.builder.declare_register(hint))
            return Register(self.builder.register(hint, calls.register_value(value)))
        given = {**dict(zip(("dst", "src"), args, strict=False)), **kwargs}
        destination = given["dst"]
        if not isinstance(destination, Register):
            refuse(f"nisa.{name} into something else than a register", "Use register_alloc()")
        if name == "register_move":
            value = calls.register_value(given["src"])
            self.builder.move_register(destination.value, value)
        elif name == "register_load":
            self.builder.load_register(given["src"], into=destination.value)
        else:
            refuse(f"nisa.{name} is not supported", "Keep values in tiles")
        return None


def _mentions(node: ast.expr, names: Sequence[str]) -> bool:
    return any(isinstance(n, ast.Name) and n.id in names for n in ast.walk(node))


def _with_role(param: Param, written: bool) -> Param:
    return replace(param, role="inout") if written and param.role == "in" else param


INSTRUCTIONS: Final = tuple(PARAMETERS)
"""Names under ``nki.isa`` that the reader understands besides the register functions."""
