"""What transforms take: functions, positions of arguments, and their names for error texts."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from trnx.core import ArgumentError, message


def function_name(function: Callable[..., Any]) -> str:
    """Name of a function, also inside partials and callable objects."""
    inner = function
    while hasattr(inner, "func"):
        inner = inner.func
    return getattr(inner, "__name__", type(inner).__name__)


def check_function(transform: str, function: Any) -> None:
    """ArgumentError unless `function` can be called."""
    if not callable(function):
        kind = type(function).__name__
        raise ArgumentError(
            message(f"{transform} needs a function and got {kind}", None, "Pass one")
        )


def argument_positions(transform: str, what: str, value: Any) -> tuple[int, ...]:
    """Argument positions, given as an int or several; `what` is the parameter's name.

    Raises:
        ArgumentError: something else.
    """
    try:
        if not isinstance(value, str):
            return (
                (operator.index(value),)
                if hasattr(value, "__index__")
                else tuple(map(operator.index, value))
            )
    except TypeError:
        pass
    raise ArgumentError(
        message(
            f"{transform} got {what}={value!r}, which is no position of an argument",
            None,
            "Use an int or a tuple of ints",
        )
    )


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
