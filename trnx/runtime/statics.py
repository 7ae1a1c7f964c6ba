"""Keys of static arguments: equality decides, but a value and its type count at every depth.

In Python ``1 == 1.0 == True`` and ``0.0 == -0.0``, yet a program traced with one of them differs
from one traced with another.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable
from typing import Any


def static_key(value: Any) -> Hashable:
    """A hashable that is equal for two static values exactly if one program serves both.

    Numbers count with their type and sign of zero, and a NaN equals itself; tuples, frozensets and
    dataclasses count element by element. Other objects count by their own ``==`` and their type.
    """
    kind = type(value)
    if kind is float:
        return (kind, value.hex())
    if kind is complex:
        return (kind, value.real.hex(), value.imag.hex())
    if isinstance(value, tuple):
        return (kind, *map(static_key, value))
    if isinstance(value, frozenset):
        return (kind, frozenset(map(static_key, value)))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [getattr(value, f.name) for f in dataclasses.fields(value) if f.compare]
        key: tuple[Any, ...] = (kind, value, *map(static_key, fields))
        try:
            hash(key)
        except TypeError:  # a hash of the class's own, over a field that has none
            return (kind, value)
        return key
    return (kind, value)
