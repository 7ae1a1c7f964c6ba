"""PyTorch's three databases under one face: names of entries, and their measurement."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.torch.opinfo import measure, modules

KINDS = ("operators", "modules", "optimizers")


def names(kind: str) -> list[str]:
    """Names of a database's entries, in its order."""
    tables: dict[str, Callable[[], dict[str, Any]]] = {
        "operators": measure.operators,
        "modules": modules.modules,
        "optimizers": modules.optimizers,
    }
    return list(tables[kind]())


def measured(kind: str, name: str, limit: int | None, parts: str) -> dict[str, Any]:
    """Measure one entry."""
    if kind == "operators":
        return measure.measure(name, limit=limit, parts=parts)
    if kind == "modules":
        return modules.module(name, limit)
    return modules.optimizer(name, limit)
