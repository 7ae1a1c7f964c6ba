"""What makes a module's functions public.

Errors that leave them show only the user's frames. Their results are arrays also where an operand
came back as it was: a NumPy array handed in is never handed out, since its owner may write to it.
"""

from __future__ import annotations

import functools
from types import FunctionType
from typing import Any

import numpy as np

from trnx.core import Tracer, aval_of, is_tracing, primitives
from trnx.core.errors import argument_error, hide_internal_frames, public_name
from trnx.runtime.array import Array
from trnx.runtime.convert import from_host, scalar_array
from trnx.runtime.devices import default_device

_NO_ARRAYS = frozenset({"ndim", "shape", "size"})  # they give Python integers


def publish(namespace: dict[str, Any]) -> None:
    """Make the functions of a module's ``globals()`` public."""
    for name, value in list(namespace.items()):
        if not name.startswith("_") and isinstance(value, FunctionType):
            namespace[name] = published(value)


def published(function: Any) -> Any:
    """The public form of a function, made once; anything that is not of trnx unchanged."""
    own = isinstance(function, FunctionType) and function.__module__.startswith("trnx.")
    if not own or hasattr(function, "__wrapped__"):
        return function
    plain = function.__name__ in _NO_ARRAYS

    @functools.wraps(function)
    def public(*args: Any, **kwargs: Any) -> Any:
        try:
            result = function(*args, **kwargs)
            return result if plain or type(result) is Array else as_result(result)
        except Exception as error:
            explained = argument_error(error, public_name(function))
            if explained is not None:
                raise explained from error
            hide_internal_frames(error)
            raise

    return public


def as_result(value: Any) -> Any:
    """A result as the user gets it: NumPy values and Python numbers are arrays; others unchanged.

    Under a trace they become traced values, so that they behave as they do outside of it.
    """
    if isinstance(value, Array | Tracer):
        return value
    if isinstance(value, np.ndarray | np.generic):
        return _traced(value) if is_tracing() and not value.shape else from_host(value)
    if isinstance(value, bool | int | float | complex):
        if is_tracing():
            return _traced(value)
        aval = aval_of(value)
        return scalar_array(value, aval.dtype, default_device(), aval.weak)
    if type(value) in (tuple, list) and any(isinstance(x, np.ndarray | np.generic) for x in value):
        return type(value)(map(as_result, value))
    return value


def _traced(value: Any) -> Any:
    """A number as a value of the current trace."""
    return primitives["broadcast"].bind(value, shape=(), dims=())
