"""An FX graph of core ATen operators becomes a trnx ``Program``.

Each node runs its rule from ``aten`` on traced arrays, with the user's line taken from the node's
stack trace, so equations, tile instructions and errors point at the model's source. Operators that
take graphs (``cond``, ``while_loop``, …) have their rules in ``higher_order``.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Node

import trnx.numpy as np
from trnx.core import Dim, Program, Source, Tracer, trace_program, use_source
from trnx.core.errors import DimError, TrnxError
from trnx.ops.functions import dim_size
from trnx_torch.compile import higher_order, randomness
from trnx_torch.compile.aten import RULES, AtenRule, overload_name
from trnx_torch.compile.aten.registry import operand_dtypes
from trnx_torch.compile.errors import UnsupportedOpError
from trnx_torch.compile.layouts import InputLayout, Mutation, OutputLayout, Place
from trnx_torch.compile.symbols import Symbols
from trnx_torch.dtypes import to_trnx_dtype

_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>\S+)')

# Checks PyTorch writes into graphs; trnx checks the same when the rules run.
_CHECKS = frozenset(
    {"_assert_tensor_metadata.default", "_assert_scalar.default", "sym_constrain_range.default"}
    | {"_assert_async.msg", "sym_constrain_range_for_size.default"}
)


@dataclass(frozen=True, slots=True)
class ImportedGraph:
    """A Program over the graph's tensors in memory order, and the layouts on both sides.

    Attributes:
        program: takes the tensors of ``inputs``, and the random stream's start if ``randoms`` > 0.
        inputs: its tensor inputs.
        outputs: the graph's outputs.
        mutations: inputs it writes to; their new values lead the program's outputs.
        randoms: how many 32-bit random numbers a call uses.
        nodes: number of operators in the graph.
    """

    program: Program
    inputs: tuple[InputLayout, ...]
    outputs: tuple[OutputLayout, ...]
    mutations: tuple[Mutation, ...]
    randoms: Any
    nodes: int


def placeholders_of(module: GraphModule) -> list[Node]:
    """The graph's inputs, in order."""
    return [node for node in module.graph.nodes if node.op == "placeholder"]


def import_graph(module: GraphModule, name: str, symbols: Symbols) -> ImportedGraph:
    """Records ``module`` (placeholders carry fake tensors in ``meta["val"]``) as a Program.

    Args:
        module: the graph.
        name: name of the Program.
        symbols: its symbolic sizes, which become the Program's.

    Raises:
        UnsupportedOpError: a node has no rule, or its rule refuses these arguments; names the
            operator, its dtypes and the user's line.
        DimError: the graph has no one program for all of its sizes.
    """
    placeholders = placeholders_of(module)
    tensors = [
        (position, node)
        for position, node in enumerate(placeholders)
        if isinstance(node.meta["val"], torch.Tensor)
    ]
    places = [Place.of(node.meta["val"], symbols) for _, node in tensors]
    inputs = tuple(
        InputLayout(position, place.shape, place.order, place.stride, place.dtype)
        for (position, _), place in zip(tensors, places, strict=True)
    )
    layouts: list[OutputLayout] = []
    mutations: list[Mutation] = []
    stream = randomness.Stream(module)

    def run(*arguments: Tracer) -> list[Any]:
        interpreter = Interpreter(module, symbols, stream)
        if stream.used:
            stream.start(arguments[-1])
        for (_, node), argument, place in zip(tensors, arguments, places, strict=False):
            interpreter.values[node] = place.from_memory(argument)
        for node in placeholders:
            if isinstance(node.meta["val"], torch.SymInt):
                interpreter.values[node] = symbols(node.meta["val"])
        results = interpreter.run()
        outputs: list[Any] = []
        by_node = {node: index for index, (_, node) in enumerate(tensors)}
        for node, value in interpreter.mutated.items():
            index = by_node[node]
            mutations.append(Mutation(len(outputs), index, inputs[index]))
            outputs.append(places[index].to_memory(value))
        _outputs(module, results, placeholders, symbols, layouts, outputs)
        return outputs

    avals = [place.aval for place in places]
    program = trace_program(run, [*avals, *stream.avals()], name)
    nodes = sum(1 for node in module.graph.nodes if node.op == "call_function")
    return ImportedGraph(program, inputs, tuple(layouts), tuple(mutations), stream.count, nodes)


class Interpreter:
    """Runs a graph's nodes on traced arrays.

    Attributes:
        values: value per node; the caller sets those of the placeholders.
        mutated: placeholders that were written to, with their new values.
    """

    def __init__(self, module: GraphModule, symbols: Symbols, stream: randomness.Stream) -> None:
        self.module = module
        self.symbols = symbols
        self.stream = stream
        self.values: dict[Node, Any] = {}
        self.mutated: dict[Node, Any] = {}

    def run(self) -> list[Any]:
        """Values of the graph's outputs."""
        for node in self.module.graph.nodes:
            if node.op == "call_function":
                self.values[node] = self._call(node)
            elif node.op == "get_attr":
                self.values[node] = self._attribute(node)
            elif node.op == "output":
                items = higher_order.output_items(self.module)
                return [self.values[i] if isinstance(i, Node) else i for i in items]
        raise AssertionError("an FX graph ends with an output node")

    def run_graph(self, module: GraphModule, arguments: Sequence[Any]) -> list[Any]:
        """Values of the outputs of a graph inside this one."""
        inner = Interpreter(module, self.symbols, self.stream)
        inner.values.update(zip(placeholders_of(module), arguments, strict=True))
        return inner.run()

    def _attribute(self, node: Node) -> Any:
        value: Any = self.module
        for part in str(node.target).split("."):
            value = getattr(value, part)
        if isinstance(value, torch.nn.Module):
            return value
        return np.asarray(value.detach().cpu().numpy())

    def _call(self, node: Node) -> Any:
        val = node.meta.get("val")
        if isinstance(val, torch.SymInt):
            return self.symbols(val)
        if isinstance(val, torch.SymBool):
            return None
        name = overload_name(node.target)
        if name in _CHECKS:
            return None
        args, kwargs = torch.fx.map_arg((node.args, node.kwargs), self.values.__getitem__)
        if node.target is operator.getitem:
            return args[0][args[1]]
        if _is_python(node):
            return node.target(*map(_number, args), **kwargs)
        with _at(node):
            try:
                if name == "copy_.default" and node.args[0].op == "placeholder":
                    return self._mutate(node, args[1], val)
                if higher_order.has_rule(node.target):
                    return conform(higher_order.apply(self, node, args, dict(kwargs)), val)
                if randomness.has_rule(name):
                    return conform(
                        randomness.apply(self.stream, name, args, dict(kwargs), val), val
                    )
                rule = RULES.get(name)
                if rule is None:
                    raise unsupported(node, "has no rule in trnx_torch.compile.aten")
                return conform(_apply(rule, node, args, dict(kwargs)), val)
            except NotImplementedError as error:
                if isinstance(error, TrnxError):
                    raise
                raise unsupported(node, f"is not supported here: {error}") from error
            except DimError as error:
                raise _with_operator(error, node) from error

    def _mutate(self, node: Node, value: Any, fake: Any) -> Any:
        value = np.broadcast_to(np.astype(value, to_trnx_dtype(fake.dtype)), self._shape(fake))
        self.mutated[node.args[0]] = value
        self.values[node.args[0]] = value
        return value

    def _shape(self, fake: torch.Tensor) -> tuple[Any, ...]:
        return self.symbols.all(fake.shape)


def _with_operator(error: DimError, node: Node) -> DimError:
    return DimError(f"{node.target}: {error}")


def _number(value: Any) -> Any:
    """A symbolic size in floating-point arithmetic of the graph."""
    return dim_size(value, np.float32) if isinstance(value, Dim) else value


def _apply(rule: AtenRule, node: Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if rule.promotion is None:
        return rule.apply(*args, **kwargs)
    fakes = torch.fx.map_arg((*node.args, *node.kwargs.values()), lambda n: n.meta["val"])
    computation, _ = operand_dtypes(fakes, rule.promotion)
    cast = tuple(np.astype(a, computation) if isinstance(a, Tracer) else a for a in args)
    return rule.apply(*cast, **kwargs)


def conform(value: Any, fake: Any) -> Any:
    """A rule's result in the dtype PyTorch expects.

    Raises:
        NotImplementedError: the rule gives another shape, or another number of results.
    """
    if isinstance(fake, list | tuple):
        if len(value) != len(fake):
            raise NotImplementedError(f"its rule gives {len(value)} results, not {len(fake)}")
        return tuple(conform(v, f) for v, f in zip(value, fake, strict=True))
    if value is None or not isinstance(fake, torch.Tensor):
        return value
    if all(isinstance(size, int) for size in fake.shape) and 0 in fake.shape:
        return np.zeros(tuple(fake.shape), dtype=to_trnx_dtype(fake.dtype))
    if value.ndim != fake.ndim or any(
        isinstance(own, int) and isinstance(wanted, int) and own != wanted
        for own, wanted in zip(value.shape, fake.shape, strict=True)
    ):
        raise NotImplementedError(f"its rule gives shape {value.shape}, not {tuple(fake.shape)}")
    return np.astype(value, to_trnx_dtype(fake.dtype))


def _is_python(node: Node) -> bool:
    """Arithmetic on sizes and numbers."""
    home = getattr(node.target, "__module__", "") or ""
    return home in ("_operator", "math", "builtins") or (
        home == "torch" and getattr(node.target, "__name__", "").startswith("sym_")
    )


def _outputs(
    module: GraphModule,
    results: Sequence[Any],
    placeholders: list[Node],
    symbols: Symbols,
    layouts: list[OutputLayout],
    outputs: list[Any],
) -> None:
    """Layouts of the graph's outputs; values that the program makes are added to `outputs`."""
    items = next(node for node in module.graph.nodes if node.op == "output").args[0]
    for item, value in zip(items, results, strict=True):
        if not isinstance(item, Node):
            layouts.append(OutputLayout(value=item))
        elif item in placeholders:
            layouts.append(OutputLayout(argument=placeholders.index(item)))
        elif isinstance(item.meta["val"], torch.SymInt):
            layouts.append(OutputLayout(size_value=value))
        elif not isinstance(item.meta["val"], torch.Tensor):
            layouts.append(OutputLayout(value=value))
        else:
            fake = item.meta["val"]
            place = Place.of(fake, symbols)
            layouts.append(
                OutputLayout(
                    program=len(outputs),
                    size=place.size,
                    stride=place.stride,
                    order=place.order,
                    device=fake.device,
                    dtype=fake.dtype,
                )
            )
            outputs.append(place.to_memory(value))


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


def unsupported(node: Node, why: str) -> UnsupportedOpError:
    """The error for a node without a rule that fits."""
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
        "torch.compiler.disable), run this graph eagerly with "
        'options={"fallback_execution": True}, or register a rule with '
        "trnx_torch.compile.aten.lowers",
    )


__all__ = ["ImportedGraph", "Interpreter", "import_graph", "placeholders_of"]
