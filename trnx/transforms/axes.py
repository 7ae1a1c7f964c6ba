"""Axis helpers for transforms, and tree prefixes of axis arguments."""

from __future__ import annotations

from typing import Any

from trnx.core import Size, aval_of, primitives, tree
from trnx.core.errors import ShapeError, message


def move_axis(value: Any, source: int, destination: int) -> Any:
    """`value` with axis `source` moved to `destination`; both count from 0 in the given value."""
    if source == destination:
        return value
    order = [axis for axis in range(aval_of(value).ndim) if axis != source]
    order.insert(destination, source)
    return primitives["transpose"].bind(value, permutation=tuple(order))


def insert_axis(value: Any, size: Size, axis: int) -> Any:
    """`value` repeated `size` times along a new axis at `axis`."""
    shape = aval_of(value).shape
    dims = tuple(old + (old >= axis) for old in range(len(shape)))
    return primitives["broadcast"].bind(
        value, shape=(*shape[:axis], size, *shape[axis:]), dims=dims
    )


def expand_prefix(prefix: Any, value: Any, what: str) -> list[int | None]:
    """One axis per leaf of `value` from an int, None or a tree prefix of it.

    Raises:
        ShapeError: `prefix` is no prefix of the tree, or holds something else than ints and None.
    """
    if prefix is None or (isinstance(prefix, int) and not isinstance(prefix, bool)):
        return [prefix] * len(tree.leaves(value))
    children = tree.children(value)
    parts = tree.children(prefix)
    if children is None or parts is None or children.keys() != parts.keys():
        raise ShapeError(
            message(
                f"The {what} is {prefix!r}, which does not match the tree it stands for",
                None,
                "Use an int, None, or a container with the same structure",
            )
        )
    result: list[int | None] = []
    for key, child in children.items():
        result += expand_prefix(parts[key], child, what)
    return result
