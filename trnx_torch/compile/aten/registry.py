"""The table of core ATen operators the compile backend understands.

A rule is array code: it receives traced arrays (or Python numbers) in the operator's argument
order and returns a traced array, or a tuple of them. One file per family registers its rules here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as KIND
from torch._prims_common import elementwise_dtypes

from trnx_torch.dtypes import to_trnx_dtype

Rule = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class AtenRule:
    """How one ATen overload becomes array code.

    With ``promotion`` the operands are first cast to PyTorch's computation dtype for that
    promotion kind and the result to its result dtype, so a rule never sees mixed dtypes.
    """

    name: str
    family: str
    apply: Rule
    promotion: KIND | None = None


RULES: dict[str, AtenRule] = {}


def lowers(*names: str, promotion: KIND | None = None) -> Callable[[Rule], Rule]:
    """Registers the decorated array code for the ATen overloads ``names`` (``"add.Tensor"``)."""

    def register(rule: Rule) -> Rule:
        family = rule.__module__.rsplit(".", 1)[-1]
        for name in names:
            if name in RULES:
                raise ValueError(f"aten.{name} has two rules, in {RULES[name].family} and {family}")
            RULES[name] = AtenRule(name, family, rule, promotion)
        return rule

    return register


def overload_name(target: object) -> str:
    """``aten.add.Tensor`` -> ``add.Tensor``; other namespaces keep theirs."""
    text = str(target)
    return text.removeprefix("aten.")


def operand_dtypes(fakes: tuple[Any, ...], kind: KIND) -> tuple[Any, Any]:
    """PyTorch's (computation, result) dtypes of an elementwise operator, as trnx dtypes."""
    numbers = [f for f in fakes if isinstance(f, torch.Tensor | int | float | bool)]
    computation, result = elementwise_dtypes(*numbers, type_promotion_kind=kind)
    return to_trnx_dtype(computation), to_trnx_dtype(result)
