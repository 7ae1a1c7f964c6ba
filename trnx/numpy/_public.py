"""What makes a module's functions public: errors that leave them show only the user's frames."""

from __future__ import annotations

from types import FunctionType
from typing import Any

from trnx.core import user_traceback


def publish(namespace: dict[str, Any]) -> None:
    """Wrap the public functions of a module's ``globals()`` with :func:`user_traceback`."""
    for name, value in list(namespace.items()):
        if not name.startswith("_") and isinstance(value, FunctionType):
            namespace[name] = published(value)


def published(function: Any) -> Any:
    """A function with :func:`user_traceback`, once; anything that is not of trnx unchanged."""
    own = isinstance(function, FunctionType) and function.__module__.startswith("trnx.")
    if not own or hasattr(function, "__wrapped__"):
        return function
    return user_traceback(function)
