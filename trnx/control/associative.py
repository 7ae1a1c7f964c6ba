"""Prefix sums of an associative operation, in a number of steps that grows with the logarithm."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from trnx.core import Dim, ShapeError, aval_of, message, tree, user_traceback
from trnx.ops import functions as op
from trnx.transforms.arguments import function_name

Tree = Any
Leaves = list[Any]


@user_traceback
def associative_scan(
    fn: Callable[[Tree, Tree], Tree], elems: Tree, reverse: bool = False, axis: int = 0
) -> Tree:
    """All partial results ``elems[0]``, ``fn(elems[0], elems[1])``, … of an associative operation.

    Args:
        fn: combines two trees of slices, many pairs at once: it must work elementwise along `axis`.
        elems: a tree of arrays of one size along `axis`.
        reverse: combine from the end; ``fn(later, earlier)``.
        axis: the axis to scan along.

    Returns:
        A tree like `elems`: entry i combines the entries up to i (from i on when `reverse`).

    Raises:
        ShapeError: sizes differ or are symbolic, or `fn` changes a type.
    """
    leaves, structure = tree.flatten(elems)
    tree.check_leaves(elems, "elems")
    name = function_name(fn)
    sizes: list[int] = []
    axes: list[int] = []
    for leaf, path in zip(leaves, tree.paths(elems, "elems"), strict=True):
        aval = aval_of(leaf)
        if not -aval.ndim <= axis < aval.ndim or isinstance(aval.shape[axis], Dim):
            raise ShapeError(
                message(
                    f"associative_scan of {name} runs along axis {axis} of {path}, which is {aval}",
                    None,
                    "Pass arrays whose axis has a size that is an int",
                )
            )
        axes.append(axis % aval.ndim)
        sizes.append(int(aval.shape[axis]))
    if len(set(sizes)) > 1:
        raise ShapeError(
            message(
                f"associative_scan of {name} got sizes {sizes} along axis {axis}",
                None,
                "Make them equal",
            )
        )

    def combine(a: Leaves, b: Leaves) -> Leaves:
        result = fn(tree.unflatten(structure, a), tree.unflatten(structure, b))
        found, found_structure = tree.flatten(result)
        if found_structure != structure or any(
            aval_of(x).strong() != aval_of(y).strong() for x, y in zip(found, a, strict=True)
        ):
            raise ShapeError(
                message(
                    f"associative_scan of {name}: the function changes the type of its operands",
                    None,
                    "Return the structure, shapes and dtypes of one operand",
                )
            )
        return found

    if reverse:
        leaves = [op.reverse(x, (a,)) for x, a in zip(leaves, axes, strict=True)]
    results = _prefixes(combine, leaves, axes, sizes[0]) if sizes and sizes[0] > 1 else leaves
    if reverse:
        results = [op.reverse(x, (a,)) for x, a in zip(results, axes, strict=True)]
    return tree.unflatten(structure, results)


def _prefixes(
    combine: Callable[[Leaves, Leaves], Leaves], leaves: Leaves, axes: Sequence[int], size: int
) -> Leaves:
    """Combine neighbours, scan the half as many results, and fill in the others from them."""
    if size < 2:
        return leaves

    def part(values: Leaves, start: int, limit: int, stride: int = 1) -> Leaves:
        return [
            op.slice_axis(x, start, limit, a, stride) for x, a in zip(values, axes, strict=True)
        ]

    pairs = size // 2
    odd = _prefixes(
        combine, combine(part(leaves, 0, 2 * pairs, 2), part(leaves, 1, 2 * pairs, 2)), axes, pairs
    )
    before = part(odd, 0, (size - 1) // 2)
    even = part(leaves, 0, 1)
    if size > 2:
        rest = combine(before, part(leaves, 2, size, 2))
        even = [op.concatenate([x, y], a) for x, y, a in zip(even, rest, axes, strict=True)]
    return [_interleaved(x, y, a, size) for x, y, a in zip(even, odd, axes, strict=True)]


def _interleaved(even: Any, odd: Any, axis: int, size: int) -> Any:
    """Entries of `even` and `odd` in turn: `size` of them."""
    shape = list(op.shape_of(even))
    if size % 2:  # `even` has one entry more
        filler = op.slice_axis(even, size // 2, size // 2 + 1, axis)
        odd = op.concatenate([odd, filler], axis)
    both = op.concatenate([op.expand(even, axis + 1), op.expand(odd, axis + 1)], axis + 1)
    shape[axis] = 2 * shape[axis]
    return op.slice_axis(op.reshape(both, shape), 0, size, axis)
