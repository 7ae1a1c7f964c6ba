"""Operators on lists of tensors, as optimizers use: the elementwise rule once per item."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import trnx.numpy as np
from trnx_torch.compile.aten.registry import lowers

Value = Any


def _item(operand: Any, index: int) -> Any:
    """The operand of one item: lists have one per item, anything else serves all."""
    return operand[index] if isinstance(operand, list | tuple) else operand


def _each(name: str, rule: Callable[..., Value], *overloads: str) -> None:
    @lowers(*[f"_foreach_{name}.{overload}" for overload in overloads])
    def run(items: Sequence[Value], *operands: Any, **kwargs: Any) -> tuple[Value, ...]:
        return tuple(
            rule(item, *[_item(operand, index) for operand in operands], **kwargs)
            for index, item in enumerate(items)
        )


def _scaled(rule: Callable[[Value, Value], Value]) -> Callable[..., Value]:
    def run(x: Value, y: Value, *, alpha: float = 1) -> Value:
        return rule(x, y if alpha == 1 else y * alpha)

    return run


def _product(combine: Callable[[Value, Value], Value]) -> Callable[..., Value]:
    def run(x: Value, left: Value, right: Value, value: Any = 1) -> Value:
        term = combine(left, right)
        return x + (term if isinstance(value, int | float) and value == 1 else term * value)

    return run


_PAIR = ("List", "Scalar", "ScalarList")
for _name, _rule in {
    "add": _scaled(np.add),
    "sub": _scaled(np.subtract),
    "mul": np.multiply,
    "div": np.divide,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "clamp_min": np.maximum,
    "clamp_max": np.minimum,
    "pow": np.power,
}.items():
    extra = ("Tensor",) if _name in ("add", "mul", "div") else ()
    _each(_name, _rule, *_PAIR, *extra)

for _name, _unary in {
    "sqrt": np.sqrt,
    "rsqrt": lambda x: np.reciprocal(np.sqrt(x)),
    "neg": np.negative,
    "abs": np.abs,
    "exp": np.exp,
    "log": np.log,
    "reciprocal": np.reciprocal,
    "sign": np.sign,
    "zero": np.zeros_like,
}.items():
    _each(_name, _unary, "default")

_each("addcmul", _product(np.multiply), "Scalar", "ScalarList")
_each("addcdiv", _product(np.divide), "Scalar", "ScalarList")
_each("lerp", lambda x, y, weight: x + weight * (y - x), "List", "Scalar", "ScalarList")
_each("copy", lambda x, source, non_blocking=False: source.astype(x.dtype), "default")


@lowers("_foreach_norm.Scalar")
def _norms(items: Sequence[Value], order: float = 2, dtype: Any = None) -> tuple[Value, ...]:
    def norm(x: Value) -> Value:
        if order == 2:
            return np.sqrt(np.sum(x * x))
        if order == 1:
            return np.sum(np.abs(x))
        if order == float("inf"):
            return np.max(np.abs(x))
        raise NotImplementedError(f"a list of norms of order {order}")

    return tuple(map(norm, items))
