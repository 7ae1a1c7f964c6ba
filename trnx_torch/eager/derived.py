"""Elementwise kernels from the compile backend's rules: one rule serves graphs and eager calls.

A rule with a promotion kind is array code over operands of one dtype. Here it becomes a formula of
the pointwise family, for the functional, in-place and out= overloads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as KIND

from trnx_torch.compile.aten import RULES, AtenRule
from trnx_torch.eager import pointwise
from trnx_torch.eager.overloads import forms, is_built_of_others, schema

Value = Any

# Not elementwise although operands promote.
_OTHER = frozenset({"glu.default"})

_OPTIONS: dict[KIND, dict[str, Any]] = {
    KIND.DEFAULT: {},
    KIND.BOOL_TO_LONG: {},
    KIND.COMPLEX_TO_FLOAT: {},
    KIND.INT_TO_FLOAT: {"integers_to_float": True},
    KIND.ALWAYS_BOOL: {"output": torch.bool},
}


def formula_of(rule: AtenRule) -> Callable[..., Value]:
    """The rule with operands by argument name; arguments that are not there take their default."""
    found = schema(rule.name)
    assert found is not None
    arguments = [(a.name, a.kwarg_only, a.has_default_value()) for a in found.arguments]

    def formula(**operands: Value) -> Value:
        args, kwargs, positional = [], {}, True
        for name, keyword, has_default in arguments:
            given = operands.get(name, _ABSENT)
            if given is _ABSENT and has_default:
                positional = False
            elif keyword or not positional:
                kwargs[name] = given
            else:
                args.append(None if given is _ABSENT else given)
        return rule.apply(*args, **_renamed(rule, kwargs))

    return formula


_ABSENT = object()


def _renamed(rule: AtenRule, kwargs: dict[str, Value]) -> dict[str, Value]:
    """Keywords under the names that the rule's own parameters have, by position."""
    if not kwargs:
        return kwargs
    import inspect

    found = schema(rule.name)
    assert found is not None
    own = list(inspect.signature(rule.apply).parameters)
    order = [a.name for a in found.arguments]
    names = {name: own[i] for i, name in enumerate(order) if i < len(own)}
    return {names.get(name, name): value for name, value in kwargs.items()}


def register(known: set[str]) -> None:
    """Registers every elementwise rule whose operator has no kernel yet (``known``: full names)."""
    for rule in RULES.values():
        found = schema(rule.name)
        if rule.promotion not in _OPTIONS or rule.name in _OTHER or found is None:
            continue
        tensors = [a for a in found.arguments if "Tensor" in str(a.type)]
        if not tensors or any("[" in str(a.type) for a in tensors) or len(found.returns) != 1:
            continue
        # A number beside the tensors takes part in promotion where PyTorch lets it.
        second = [a.name for a in found.arguments[:2] if str(a.type) in ("Tensor", "number")]
        scalar = rule.name.endswith((".Scalar", ".Tensor_Scalar", ".Scalar_mode"))
        promote = second if scalar else ()
        ops = [
            op
            for op in forms(rule.name)
            if f"aten::{op}" not in known and not is_built_of_others(f"aten::{op}")
        ]
        known.update(f"aten::{op}" for op in ops)
        if ops:
            pointwise.define(formula_of(rule), *ops, promote=promote, **_OPTIONS[rule.promotion])
