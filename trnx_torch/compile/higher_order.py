"""Operators that take graphs: branches, loops, scans and called subgraphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import GraphModule, Node

import trnx.lax as lax
import trnx.numpy as np
from trnx_torch.dtypes import to_trnx_dtype

if TYPE_CHECKING:
    from trnx_torch.compile.importer import Interpreter

Value = Any
_RULES: dict[str, Callable[..., Any]] = {}


def has_rule(target: Any) -> bool:
    """Whether a node's target is one of these operators."""
    return isinstance(target, torch._ops.HigherOrderOperator) and target.name() in _RULES


def apply(
    interpreter: Interpreter, node: Node, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """The results of an operator on graphs."""
    return _RULES[node.target.name()](interpreter, *args, **kwargs)


def _operator(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def register(rule: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            _RULES[name] = rule
        return rule

    return register


def _function(interpreter: Interpreter, module: GraphModule) -> Callable[..., tuple[Value, ...]]:
    """A graph as a function; results have the dtypes PyTorch expects."""
    items = output_items(module)

    def run(*arguments: Value) -> tuple[Value, ...]:
        results = interpreter.run_graph(module, arguments)
        return tuple(
            np.astype(value, to_trnx_dtype(item.meta["val"].dtype))
            if isinstance(item, Node) and isinstance(item.meta["val"], torch.Tensor)
            else value
            for item, value in zip(items, results, strict=True)
        )

    return run


def output_items(module: GraphModule) -> tuple[Any, ...]:
    """What a graph returns; a single value is a tuple of one."""
    (returned,) = next(node for node in module.graph.nodes if node.op == "output").args
    return tuple(returned) if isinstance(returned, list | tuple) else (returned,)


def _no_random(interpreter: Interpreter, *modules: GraphModule) -> None:
    before = interpreter.stream
    from trnx_torch.compile.randomness import Stream

    if before.used and any(Stream(module).used for module in modules):
        raise NotImplementedError("random operators inside a branch or a loop")


@_operator("cond")
def _cond(
    interpreter: Interpreter,
    predicate: Value,
    on_true: GraphModule,
    on_false: GraphModule,
    operands: Sequence[Value] = (),
) -> tuple[Value, ...]:
    _no_random(interpreter, on_true, on_false)
    return lax.cond(
        np.reshape(predicate, ()),
        _function(interpreter, on_true),
        _function(interpreter, on_false),
        *operands,
    )


@_operator("while_loop")
def _while_loop(
    interpreter: Interpreter,
    condition: GraphModule,
    body: GraphModule,
    carried: Sequence[Value],
    additional: Sequence[Value] = (),
) -> tuple[Value, ...]:
    _no_random(interpreter, condition, body)
    test, step = _function(interpreter, condition), _function(interpreter, body)
    return lax.while_loop(
        lambda values: np.reshape(test(*values, *additional)[0], ()),
        lambda values: step(*values, *additional),
        tuple(carried),
    )


@_operator("scan")
def _scan(
    interpreter: Interpreter,
    combine: GraphModule,
    init: Sequence[Value],
    xs: Sequence[Value],
    additional: Sequence[Value] = (),
) -> tuple[Value, ...]:
    _no_random(interpreter, combine)
    step = _function(interpreter, combine)
    count = len(init)

    def body(carry: tuple[Value, ...], x: tuple[Value, ...]) -> Any:
        results = step(*carry, *x, *additional)
        return results[:count], results[count:]

    last, stacked = lax.scan(body, tuple(init), tuple(xs))
    return (*last, *stacked)


@_operator("invoke_subgraph")
def _invoke_subgraph(
    interpreter: Interpreter, module: GraphModule, identifier: Any, *operands: Value
) -> tuple[Value, ...]:
    return _function(interpreter, module)(*operands)
