"""Kernels as callable objects: read once per argument types, then run natively or simulated."""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import CodeType, FunctionType, ModuleType
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from trnx.compiler import host, sim
from trnx.compiler.nki.emit import program_source
from trnx.compiler.nki.read import TensorType, read_kernel
from trnx.compiler.nki.values import MODULES, Function, Member, Module, Operator
from trnx.compiler.targets import target as find_target
from trnx.compiler.tile.build import single_kernel_program
from trnx.compiler.tile.ir import TileProgram
from trnx.compiler.tile.legality import check_program
from trnx.compiler.tile.parallel import mark_parallel
from trnx.compiler.tile.place import place
from trnx.compiler.tile.schedule import schedule
from trnx.core import config
from trnx.core.dtypes import as_dtype
from trnx.core.errors import UnsupportedError, message, user_traceback
from trnx.core.source import Source

_CONSTANTS = (bool, int, float, str, type(None), np.dtype, Operator, Member)


@dataclass(frozen=True, slots=True)
class _Read:
    """A kernel for one set of argument types."""

    program: TileProgram
    returns: tuple[str, ...]
    tensors: tuple[str, ...]


class NkiKernel:
    """A kernel: call it with arrays to run it natively, or give it to `simulate`.

    Args:
        text: source of the kernel, its module or its function.
        name: name of the kernel function.
        parameters: its parameters.
        scope: values of the global names it uses.
        file: file of the source.
        first_line: line of the first line of `text` in the file.
        unroll: run static loops while reading, so that ``if`` may depend on their indices.
    """

    def __init__(
        self,
        text: str,
        name: str,
        parameters: Sequence[inspect.Parameter],
        *,
        scope: Mapping[str, Any] | None = None,
        file: str = "<nki>",
        first_line: int = 1,
        unroll: bool = False,
    ) -> None:
        self.__name__ = name
        self.text = text
        self.file = file
        self.unroll = unroll
        self._signature = inspect.Signature(list(parameters))
        self._scope = dict(scope or {})
        self._first_line = first_line
        self._read: dict[Any, _Read] = {}
        self._native: dict[int, host.NativeProgram] = {}

    def tile_program(self, *args: Any, **kwargs: Any) -> TileProgram:
        """The placed, scheduled and checked tile program for these arguments.

        Raises:
            UnsupportedError: the source uses something outside the subset; names the line.
            TileError: the kernel breaks a legality rule of the target.
        """
        return self._for(self._bind(args, kwargs)).program

    def _bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return {
            name: value if isinstance(value, (*_CONSTANTS, tuple)) else np.asarray(value)
            for name, value in bound.arguments.items()
        }

    def _for(self, arguments: Mapping[str, Any]) -> _Read:
        types = {
            name: TensorType(value.shape, as_dtype(value.dtype))
            if isinstance(value, np.ndarray)
            else value
            for name, value in arguments.items()
        }
        target = find_target(config.target.value)
        key = (target.name, *((n, t, type(t)) for n, t in types.items()))
        found = self._read.get(key)
        if found is None:
            found = self._read[key] = self._compile(types, target.name)
        return found

    def _compile(self, types: Mapping[str, Any], target: str) -> _Read:
        made = read_kernel(
            self.text,
            types,
            name=self.__name__,
            scope=self._scope,
            file=self.file,
            first_line=self._first_line,
            target=target,
            unroll=self.unroll,
        )
        kernel = schedule(mark_parallel(place(made.kernel, target)))
        program = single_kernel_program(kernel, target)
        check_program(program)
        tensors = tuple(b.name for b in program.buffers if b.kind == "input")
        return _Read(program, made.returns, tensors)

    @user_traceback
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run natively. Arrays in, NumPy arrays out; an argument the kernel writes is updated."""
        arguments = self._bind(args, kwargs)
        read = self._for(arguments)
        native = self._native.get(id(read))
        if native is None:
            native = host.load(host.compile_program(read.program))
            self._native[id(read)] = native
        arrays = {n: np.array(arguments[n], order="C") for n in read.tensors}
        for buffer in read.program.buffers:
            if buffer.kind == "output":
                shape = tuple(int(str(size)) for size in buffer.shape)
                arrays[buffer.name] = np.empty(shape, buffer.dtype)
        native([arrays[name].ctypes.data for name in native.code.buffers])
        return _results(read, arguments, {n: arrays[n] for n in read.program.outputs})

    def __repr__(self) -> str:
        return f"<NKI kernel {self.__name__} of {self.file}>"


def _results(read: _Read, arguments: Mapping[str, Any], outputs: Mapping[str, NDArray[Any]]) -> Any:
    """What the kernel returns; tensors it wrote go back into the caller's arrays."""
    for name, value in outputs.items():
        if name in arguments and arguments[name].flags.writeable:
            np.copyto(arguments[name], value)
    values = tuple(outputs[name] if name in outputs else arguments[name] for name in read.returns)
    return values[0] if len(values) == 1 else values or None


@overload
def jit(function: Callable[..., Any]) -> NkiKernel: ...
@overload
def jit(*, unroll: bool = False) -> Callable[[Callable[..., Any]], NkiKernel]: ...
def jit(function: Callable[..., Any] | None = None, *, unroll: bool = False) -> Any:
    """Make a kernel of a function: ``@nki.jit`` or ``@nki.jit(unroll=True)``.

    Args:
        function: a function written in NKI; its source must be readable.
        unroll: run static loops while reading, so that ``if`` may depend on their indices.
    """
    if function is None:
        return functools.partial(_from_function, unroll=unroll)
    return _from_function(function, unroll=unroll)


def _from_function(function: Callable[..., Any], *, unroll: bool = False) -> NkiKernel:
    if not isinstance(function, FunctionType):
        raise UnsupportedError(
            message(f"{function!r} is no Python function", None, "Decorate a def")
        )
    text, line, file = _source_of(function)
    parameters = list(inspect.signature(function).parameters.values())
    return NkiKernel(
        text,
        function.__name__,
        parameters,
        scope=_LazyScope(function),
        file=file,
        first_line=line,
        unroll=unroll,
    )


def _source_of(function: FunctionType) -> tuple[str, int, str]:
    file = inspect.getsourcefile(function) or "<unknown>"
    try:
        lines, line = inspect.getsourcelines(function)
    except OSError:
        where = Source(file, function.__code__.co_firstlineno, function.__name__)
        raise UnsupportedError(
            message(
                f"the source of '{function.__name__}' cannot be read",
                where,
                "Define the kernel in a file, or use nki.from_source(text)",
            )
        ) from None
    return textwrap.dedent("".join(lines)), line, file


class _LazyScope(dict[str, Any]):
    """The global and closure names of a function, as the reader wants them."""

    def __init__(self, function: FunctionType) -> None:
        outside = inspect.getclosurevars(function)
        found = {**outside.globals, **outside.nonlocals}
        for name in _names(function.__code__) & function.__globals__.keys():
            found.setdefault(name, function.__globals__[name])
        super().__init__({n: v for n, value in found.items() if (v := _convert(value)) is not None})


def _names(code: CodeType) -> set[str]:
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= _names(constant)
    return names


def _convert(value: Any) -> Any:
    """A global of the user's module; None hides what a kernel cannot use."""
    if isinstance(value, ModuleType):
        known = MODULES.get(value.__name__)
        return None if known is None else Module(known)
    if isinstance(value, FunctionType):
        text, line, _ = _source_of(value)
        (node,) = ast.parse(text).body
        if not isinstance(node, ast.FunctionDef):
            return None
        ast.increment_lineno(node, line - 1)
        return Function(node, _LazyScope(value))
    if isinstance(value, _CONSTANTS) and value is not None:
        return value
    if isinstance(value, tuple) and all(isinstance(v, _CONSTANTS) for v in value):
        return value
    return None


def from_source(text: str, name: str | None = None, *, unroll: bool = False) -> NkiKernel:
    """A kernel of a module text, such as `source` prints.

    Args:
        text: module text with imports, helpers and kernels.
        name: the kernel; may be left out when the text has one ``@nki.jit`` function.
        unroll: as in `jit`.
    """
    functions = [n for n in ast.parse(text).body if isinstance(n, ast.FunctionDef)]
    kernels = [n for n in functions if n.decorator_list and name in (None, n.name)]
    if len(kernels) != 1:
        known = ", ".join(n.name for n in functions if n.decorator_list)
        raise UnsupportedError(
            message(f"the source has {len(kernels)} such kernels", None, f"Name one of {known}")
        )
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [inspect.Parameter(a.arg, kind) for a in kernels[0].args.args]
    return NkiKernel(text, kernels[0].name, parameters, unroll=unroll)


class Simulation:
    """A kernel on the simulator; call it with arrays, or `run` it for the whole result."""

    def __init__(self, kernel: NkiKernel, options: sim.SimOptions | None = None) -> None:
        self.kernel = kernel
        self.options = options

    @user_traceback
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The kernel's results as NumPy arrays; TileError on the first finding."""
        options = replace(self.options or sim.SimOptions(), raise_findings=True)
        arguments = self.kernel._bind(args, kwargs)
        read = self.kernel._for(arguments)
        result = sim.simulate(read.program, [arguments[n] for n in read.tensors], (), options)
        outputs = dict(zip(read.program.outputs, result.outputs, strict=True))
        return _results(read, arguments, outputs)

    @user_traceback
    def run(self, *args: Any, **kwargs: Any) -> sim.SimResult:
        """Outputs with findings, cost per engine and timeline; arguments are not changed."""
        arguments = self.kernel._bind(args, kwargs)
        read = self.kernel._for(arguments)
        return sim.simulate(read.program, [arguments[n] for n in read.tensors], (), self.options)


def simulate(kernel: NkiKernel, options: sim.SimOptions | None = None) -> Simulation:
    """The kernel on the simulator: ``nki.simulate(kernel)(arrays)``."""
    return Simulation(kernel, options)


def source(program: TileProgram, *, comments: bool = True) -> str:
    """NKI source of a tile program; UnsupportedError names what NKI cannot say.

    Args:
        program: for example ``trnx.jit(f).lower(x)``'s, or a kernel's ``tile_program(x)``.
        comments: put the user's line before each group of instructions.
    """
    return program_source(program, comments=comments)
