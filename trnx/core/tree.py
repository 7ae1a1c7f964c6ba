"""Nested containers of arrays (pytrees): a thin layer over optree.

Tuples, lists, dicts (sorted by key), named tuples, ``None`` (an empty subtree) and registered
classes are inner nodes; everything else is a leaf.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import optree

from trnx.core.avals import is_array_like
from trnx.core.errors import UnknownTypeError, message

NAMESPACE = "trnx"
TreeDef: TypeAlias = optree.PyTreeSpec


def flatten(tree: Any) -> tuple[list[Any], TreeDef]:
    """Leaves of a tree in order, and its structure (hashable, comparable)."""
    return optree.tree_flatten(tree, namespace=NAMESPACE)


def unflatten(treedef: TreeDef, leaves: Iterable[Any]) -> Any:
    """The tree of a structure and its leaves."""
    return optree.tree_unflatten(treedef, leaves)


def leaves(tree: Any) -> list[Any]:
    """Leaves of a tree in order."""
    return optree.tree_leaves(tree, namespace=NAMESPACE)


def structure(tree: Any) -> TreeDef:
    """Structure of a tree."""
    return optree.tree_structure(tree, namespace=NAMESPACE)


def map(function: Callable[..., Any], tree: Any, *rest: Any) -> Any:
    """Apply `function` to corresponding leaves; the trees must have one structure."""
    return optree.tree_map(function, tree, *rest, namespace=NAMESPACE)


def paths(tree: Any, root: str = "") -> list[str]:
    """Text of the way to each leaf, as Python would index it: ``root['w'][0]``."""
    return [accessor.codify(root) for accessor in optree.tree_accessors(tree, namespace=NAMESPACE)]


def is_leaf(value: Any) -> bool:
    """True when `value` is no container."""
    return optree.tree_is_leaf(value, namespace=NAMESPACE)


def children(value: Any) -> dict[Any, Any] | None:
    """Direct children of a container by key, in order; None for a leaf."""
    if is_leaf(value):
        return None
    parts, _, entries, _ = optree.tree_flatten_one_level(value, namespace=NAMESPACE)
    return dict(zip(entries, parts, strict=True))


def register_node(
    cls: type,
    flatten: Callable[[Any], tuple[Iterable[Any], Any]],
    unflatten: Callable[[Any, Sequence[Any]], Any],
) -> None:
    """Make `cls` an inner node.

    Args:
        cls: the class.
        flatten: instance -> (children, hashable metadata).
        unflatten: (metadata, children) -> instance.
    """
    optree.register_pytree_node(
        cls,
        flatten,
        lambda metadata, children: unflatten(metadata, tuple(children)),
        namespace=NAMESPACE,
    )


def register_dataclass(
    cls: type, data_fields: Sequence[str], static_fields: Sequence[str] = ()
) -> None:
    """Make a dataclass an inner node: `data_fields` are children, `static_fields` metadata."""
    names, fixed = tuple(data_fields), tuple(static_fields)

    def split(value: Any) -> tuple[tuple[Any, ...], Any]:
        children = tuple(getattr(value, name) for name in names)
        return children, tuple(getattr(value, name) for name in fixed)

    def join(metadata: Any, children: Sequence[Any]) -> Any:
        values = zip((*names, *fixed), (*children, *metadata), strict=True)
        return cls(**dict(values))

    register_node(cls, split, join)


def check_leaves(tree: Any, root: str, what: str = "argument") -> None:
    """Reject leaves that are no arrays or numbers.

    Args:
        tree: the tree to look at.
        root: name of the tree in the error text (an argument name or ``output``).
        what: kind of thing `root` is.

    Raises:
        UnknownTypeError: names the path and the type of the first bad leaf.
    """
    values = leaves(tree)
    for index, leaf in enumerate(values):
        if not is_array_like(leaf):
            path = paths(tree, root)[index]
            raise UnknownTypeError(
                message(
                    f"The {what} {path} has type {type(leaf).__module__}."
                    f"{type(leaf).__qualname__}, which is neither an array nor a known container",
                    None,
                    "Pass arrays, register the class with register_dataclass, "
                    "or make the argument static",
                )
            )
