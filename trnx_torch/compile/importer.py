"""An FX graph of core ATen operators becomes a trnx ``Program``.

Each node runs its rule from ``aten`` on traced arrays, with the user's line taken from the node's
stack trace, so equations, tile instructions and errors point at the model's source.

Inputs and outputs keep PyTorch's memory layout: a tensor whose memory is a dense permutation (the
gradient of a transposed weight, say) enters or leaves the program in memory order, and the layouts
tell the runner how PyTorch sees it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch
from torch.fx import GraphModule, Node

import trnx.numpy as np
from trnx.core import Aval, Program, Source, Tracer, trace_program, use_source
from trnx_torch.compile.aten import RULES, AtenRule, overload_name
from trnx_torch.compile.aten.registry import operand_dtypes
from trnx_torch.compile.errors import UnsupportedOpError
from trnx_torch.dtypes import to_trnx_dtype

_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>\S+)')


@dataclass(frozen=True, slots=True)
class OutputLayout:
    """Where graph output ``i`` comes from.

    Exactly one of ``program`` (index into the program's outputs), ``argument`` (a graph input
    returned unchanged) and ``value`` (a constant such as ``None``) applies.
    ``size`` and ``stride`` describe the tensor PyTorch expects, in elements; its memory is dense.
    """

    program: int | None = None
    argument: int | None = None
    value: Any = None
    size: tuple[int, ...] = ()
    stride: tuple[int, ...] = ()
    device: torch.device | None = None
    dtype: torch.dtype | None = None


@dataclass(frozen=True, slots=True)
class InputLayout:
    """The memory a graph input is read from: dense, with PyTorch's axes in ``stride`` order."""

    size: tuple[int, ...]
    stride: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ImportedGraph:
    """A Program over the graph's tensors in memory order, and the layouts on both sides."""

    program: Program
    inputs: tuple[InputLayout, ...]
    outputs: tuple[OutputLayout, ...]


def symbol_inputs(module: GraphModule) -> dict[int, Any]:
    """Graph inputs that are symbolic sizes: position to SymPy expression."""
    found: dict[int, Any] = {}
    placeholders = [n for n in module.graph.nodes if n.op == "placeholder"]
    for position, node in enumerate(placeholders):
        if isinstance(node.meta["val"], torch.SymInt):
            found[position] = node.meta["val"].node.expr
    return found


class Sizes:
    """Values of a graph's symbolic sizes for one call; without any it passes ints through."""

    def __init__(self, values: Mapping[Any, int]) -> None:
        self._values: dict[Any, sympy.Integer] = {}
        for expression, value in values.items():
            for symbol in expression.free_symbols:
                # A backward graph may be given 2*s and no s: solve for the symbol.
                for solution in sympy.solve(expression - value, symbol)[:1]:
                    if solution.is_Integer:
                        self._values[symbol] = solution

    def __call__(self, size: Any) -> int:
        """The value of an int, a SymInt or an expression of known symbols."""
        if not isinstance(size, torch.SymInt):
            return int(size)
        known = size.node.expr.xreplace(self._values)
        return int(known) if known.is_Integer else int(size)

    def all(self, sizes: Iterable[Any]) -> tuple[int, ...]:
        """The values of several sizes."""
        return tuple(map(self, sizes))


def import_graph(module: GraphModule, name: str, sizes: Sizes) -> ImportedGraph:
    """Records ``module`` (placeholders carry fake tensors in ``meta["val"]``) as a Program.

    Args:
        module: the graph.
        name: name of the Program.
        sizes: values of the graph's symbolic sizes; the Program's sizes are static.

    Raises:
        UnsupportedOpError: a node has no rule, or its rule refuses these arguments; names the
            operator, its dtypes and the user's line.
    """
    placeholders = [n for n in module.graph.nodes if n.op == "placeholder"]
    tensors = [n for n in placeholders if isinstance(n.meta["val"], torch.Tensor)]
    places = [_Place.of(n.meta["val"], sizes) for n in tensors]
    avals = [place.aval for place in places]
    layouts: list[OutputLayout] = []

    def run(*arguments: Tracer) -> list[Any]:
        values: dict[Node, Any] = {
            node: sizes(node.meta["val"])
            for node in placeholders
            if isinstance(node.meta["val"], torch.SymInt)
        }
        for node, argument, place in zip(tensors, arguments, places, strict=True):
            values[node] = place.from_memory(argument)
        for node in module.graph.nodes:
            if node.op == "call_function":
                values[node] = _call(node, values)
            elif node.op == "get_attr":
                values[node] = _constant(module, node)
            elif node.op == "output":
                return _outputs(node, values, placeholders, sizes, layouts)
        raise AssertionError("an FX graph ends with an output node")

    program = trace_program(run, avals, name)
    inputs = tuple(InputLayout(place.size, place.stride) for place in places)
    return ImportedGraph(program, inputs, tuple(layouts))


@dataclass(frozen=True, slots=True)
class _Place:
    """How a tensor lies in memory: ``order`` lists axes from the largest stride to the smallest."""

    size: tuple[int, ...]
    order: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, fake: torch.Tensor, sizes: Sizes) -> _Place:
        """The dense place of a fake tensor; row major when its own strides are not dense."""
        size, stride = sizes.all(fake.shape), sizes.all(fake.stride())
        natural = tuple(range(len(size)))
        order = tuple(sorted(natural, key=lambda d: (-stride[d], -size[d])))
        place = cls(size, order, fake.dtype)
        dense = all(
            own == wanted
            for count, own, wanted in zip(size, stride, place.stride, strict=True)
            if count > 1
        )
        moved = [d for d in order if size[d] > 1]
        if not dense or 0 in size or moved == sorted(moved):
            return cls(size, natural, fake.dtype)
        return place

    @property
    def stride(self) -> tuple[int, ...]:
        """Strides in elements."""
        strides = [0] * len(self.size)
        step = 1
        for axis in reversed(self.order):
            strides[axis] = step
            step *= max(self.size[axis], 1)
        return tuple(strides)

    @property
    def aval(self) -> Aval:
        """The type of the memory, row major."""
        return Aval(tuple(self.size[d] for d in self.order), to_trnx_dtype(self.dtype))

    def from_memory(self, value: Any) -> Any:
        """The tensor's value from its memory's."""
        inverse = tuple(sorted(range(len(self.order)), key=self.order.__getitem__))
        return value if inverse == self.order == _natural(value) else np.transpose(value, inverse)

    def to_memory(self, value: Any) -> Any:
        """The memory's value from the tensor's."""
        return value if self.order == _natural(value) else np.transpose(value, self.order)


def _natural(value: Any) -> tuple[int, ...]:
    return tuple(range(value.ndim))


def _constant(module: GraphModule, node: Node) -> Any:
    value: Any = module
    for part in str(node.target).split("."):
        value = getattr(value, part)
    return np.asarray(value.detach().cpu().numpy())


def _call(node: Node, values: dict[Node, Any]) -> Any:
    args = torch.fx.map_arg(node.args, lambda n: values[n])
    kwargs = torch.fx.map_arg(node.kwargs, lambda n: values[n])
    if _is_python(node):  # arithmetic on sizes, and items of tuples
        return node.target(*args, **kwargs)
    rule = RULES.get(overload_name(node.target))
    if rule is None:
        raise _unsupported(node, "has no rule in trnx_torch.compile.aten")
    with _at(node):
        try:
            return _conform(node, _apply(rule, node, args, dict(kwargs)), node.meta.get("val"))
        except NotImplementedError as error:
            raise _unsupported(node, f"is not supported here: {error}") from error


def _apply(rule: AtenRule, node: Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if rule.promotion is None:
        return rule.apply(*args, **kwargs)
    fakes = torch.fx.map_arg((*node.args, *node.kwargs.values()), lambda n: n.meta["val"])
    computation, _ = operand_dtypes(fakes, rule.promotion)
    cast = tuple(np.astype(a, computation) if isinstance(a, Tracer) else a for a in args)
    return rule.apply(*cast, **kwargs)


def _conform(node: Node, value: Any, fake: Any) -> Any:
    """A rule's result in the dtype PyTorch expects.

    Raises:
        NotImplementedError: the rule gives another shape than PyTorch's.
    """
    if isinstance(fake, list | tuple):
        if len(value) != len(fake):
            raise NotImplementedError(f"its rule gives {len(value)} results, not {len(fake)}")
        return tuple(_conform(node, v, f) for v, f in zip(value, fake, strict=True))
    if value is None or not isinstance(fake, torch.Tensor):
        return value
    if value.ndim != fake.ndim:
        raise NotImplementedError(f"its rule gives shape {value.shape}, not {tuple(fake.shape)}")
    return np.astype(value, to_trnx_dtype(fake.dtype))


def _is_python(node: Node) -> bool:
    return getattr(node.target, "__module__", "") in ("_operator", "math", "builtins")


def _outputs(
    node: Node,
    values: dict[Node, Any],
    placeholders: list[Node],
    sizes: Sizes,
    layouts: list[OutputLayout],
) -> list[Any]:
    results: list[Any] = []
    for item in node.args[0]:
        if not isinstance(item, Node):
            layouts.append(OutputLayout(value=item))
        elif item in placeholders:
            layouts.append(OutputLayout(argument=placeholders.index(item)))
        elif not isinstance(item.meta["val"], torch.Tensor):
            layouts.append(OutputLayout(value=values[item]))
        else:
            fake = item.meta["val"]
            place = _Place.of(fake, sizes)
            layouts.append(
                OutputLayout(
                    program=len(results),
                    size=place.size,
                    stride=place.stride,
                    device=fake.device,
                    dtype=fake.dtype,
                )
            )
            results.append(place.to_memory(values[item]))
    return results


def node_source(node: Node) -> Source:
    """The innermost user frame of the node's recorded stack trace."""
    frames = _FRAME.findall(node.stack_trace or "")
    if not frames:
        return Source("", 0, "")
    own = [f for f in frames if "/site-packages/torch/" not in f[0]]
    file, line, function = (own or frames)[-1]
    return Source(file, int(line), function, _module_path(node))


def _module_path(node: Node) -> str:
    stack = node.meta.get("nn_module_stack") or {}
    names = [str(path) for path, _ in stack.values()]
    return names[-1] if names else ""


@contextmanager
def _at(node: Node) -> Iterator[None]:
    with use_source(node_source(node)):
        yield


def _unsupported(node: Node, why: str) -> UnsupportedOpError:
    fakes: list[torch.Tensor] = []
    collect: Callable[[Node], None] = lambda n: fakes.append(n.meta.get("val"))  # noqa: E731
    torch.fx.map_arg((node.args, node.kwargs), collect)
    types = ", ".join(
        f"{str(f.dtype).removeprefix('torch.')}{list(f.shape)}"
        for f in fakes
        if isinstance(f, torch.Tensor)
    )
    return UnsupportedOpError(
        f"{node.target}({types}) {why}",
        node_source(node),
        "Move it out of the compiled region (torch._dynamo.graph_break() or "
        "torch.compiler.disable), or register a rule with trnx_torch.compile.aten.lowers",
    )
