"""Names of functions and arguments, for error texts."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any


def function_name(function: Callable[..., Any]) -> str:
    """Name of a function, also inside partials and callable objects."""
    inner = function
    while hasattr(inner, "func"):
        inner = inner.func
    return getattr(inner, "__name__", type(inner).__name__)


@lru_cache(maxsize=512)
def _signature(function: Callable[..., Any]) -> inspect.Signature | None:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):  # builtins without a signature
        return None


def argument_names(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> list[str]:
    """A name per positional argument, then the keyword names.

    Positional arguments without a name in the signature are called ``argument 0`` and so on.
    """
    try:
        signature = _signature(function)
    except TypeError:  # unhashable callable object
        signature = None
    names: list[str] = []
    rest = ""
    if signature is not None:
        for parameter in signature.parameters.values():
            if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
                names.append(parameter.name)
            elif parameter.kind is parameter.VAR_POSITIONAL:
                rest = parameter.name
    result = []
    for index in range(len(args)):
        if index < len(names):
            result.append(names[index])
        elif rest:
            result.append(f"{rest}[{index - len(names)}]")
        else:
            result.append(f"argument {index}")
    return [*result, *kwargs]
