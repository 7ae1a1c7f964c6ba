"""Which axes of a function's arguments are dynamic, and the values of named sizes in a call."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from trnx.core.avals import Shape
from trnx.core.dims import Dim, DimVar, Size, dim, evaluate, variables
from trnx.core.errors import DimError, message

Path: TypeAlias = tuple[str, ...]


def path_of(text: str) -> Path:
    """The steps of a path: ``batch['x'][0].w`` and ``batch.x.0.w`` are the same."""
    return tuple(step for step in re.split(r"[.\[\]'\"\s]+", text) if step)


class Signature:
    """How the named sizes of a program follow from the shapes of its arguments.

    Args:
        shapes: shape per argument, of ints and symbolic sizes.
        paths: text of the way to each argument, for errors.

    Attributes:
        shapes: as given.
        variables: the named sizes, sorted by name.

    Raises:
        DimError: a name occurs only in expressions from which its value does not follow.
    """

    __slots__ = ("shapes", "variables", "_checks", "_paths", "_reads")

    def __init__(self, shapes: Sequence[Shape], paths: Sequence[str]) -> None:
        self.shapes = tuple(shapes)
        self._paths = tuple(paths)
        places = [
            (leaf, axis, size)
            for leaf, shape in enumerate(shapes)
            for axis, size in enumerate(shape)
        ]
        named = [variables(size) for _, _, size in places if isinstance(size, Dim)]
        found = {v.name: v for group in named for v in group}
        self.variables = tuple(found[name] for name in sorted(found))
        # name -> (leaf, axis, factor, offset) of an axis that is factor * name + offset
        reads: dict[str, tuple[int, int, int, int]] = {}
        for leaf, axis, size in places:
            linear = _linear(size)
            if linear is not None:
                name, factor, offset = linear
                if name not in reads or (factor, offset) == (1, 0) != reads[name][2:]:
                    reads[name] = (leaf, axis, factor, offset)
        self._reads = [(v, *reads[v.name]) for v in self.variables if v.name in reads]
        for v in self.variables:
            if v.name not in reads:
                where = ", ".join(
                    f"{size} ({self._place(leaf, axis)})"
                    for leaf, axis, size in places
                    if isinstance(size, Dim) and v in variables(size)
                )
                raise DimError(
                    message(
                        f"The value of size {v.name} does not follow from {where}",
                        None,
                        f"Give one axis the size {v.name} itself",
                    )
                )
        taken = {(leaf, axis) for _, leaf, axis, _, _ in self._reads}
        self._checks = [place for place in places if place[:2] not in taken]

    def _place(self, leaf: int, axis: int) -> str:
        return f"{self._paths[leaf]}, axis {axis}"

    def problem(self, shapes: Sequence[Sequence[int]], sizes: dict[str, int]) -> str:
        """Read the sizes from the shapes of a call, into `sizes`.

        Returns:
            What does not fit, as the cause of an error; empty when all does.
        """
        for variable, leaf, axis, factor, offset in self._reads:
            value, rest = divmod(shapes[leaf][axis] - offset, factor)
            if rest or value < 0:
                return (
                    f"{self._place(leaf, axis)}, has size {shapes[leaf][axis]}, which is no "
                    f"{self.shapes[leaf][axis]}"
                )
            high = variable.max
            if value < variable.min or (high is not None and value > high):
                top = "" if high is None else high
                return (
                    f"Size {variable.name} = {value} ({self._place(leaf, axis)}) is outside "
                    f"its bounds {variable.min}..{top}"
                )
            sizes[variable.name] = value
        for leaf, axis, size in self._checks:
            actual = shapes[leaf][axis]
            if isinstance(size, Dim):
                if evaluate(size, sizes) != actual:
                    return self._conflict(leaf, axis, size, shapes, sizes)
            elif size != actual:
                return f"{self._place(leaf, axis)}, has size {actual} and was traced with {size}"
        return ""

    def _conflict(
        self,
        leaf: int,
        axis: int,
        size: Dim,
        shapes: Sequence[Sequence[int]],
        sizes: Mapping[str, int],
    ) -> str:
        names = [v.name for v in variables(size)]
        seen = [
            f"{v.name} is {sizes[v.name]} in {self._place(own_leaf, own_axis)} "
            f"of shape {tuple(shapes[own_leaf])}"
            for v, own_leaf, own_axis, _, _ in self._reads
            if v.name in names
        ]
        return (
            f"Sizes do not agree: {' and '.join(seen)}, but {size} is {shapes[leaf][axis]} in "
            f"{self._place(leaf, axis)} of shape {tuple(shapes[leaf])}"
        )


def _linear(size: Size) -> tuple[str, int, int] | None:
    """(name, factor, offset) of a size ``factor * name + offset`` that grows, else None."""
    if not isinstance(size, Dim):
        return None
    name, factor, offset = "", 0, 0
    for monomial, coefficient in size._terms:
        if not monomial:
            offset = coefficient
            continue
        atom, power = monomial[0]
        if factor or len(monomial) > 1 or power > 1 or not isinstance(atom, DimVar):
            return None
        name, factor = atom.name, coefficient
    return (name, factor, offset) if factor > 0 else None


class DynamicAxes:
    """The `dynamic` argument of `jit` as a mapping.

    Args:
        given: from an argument (name, position or path) to its axes: a mapping from axis to a
            name or a Dim, or one of these for axis 0.
        function: name of the function, for errors.

    Raises:
        TypeError: an entry is nothing of the kind.
        DimError: one name has two different bounds, or no identifier.
    """

    def __init__(self, given: Mapping[str | int, Any], function: str) -> None:
        self._function = function
        self._entries: list[tuple[str | int, Path, dict[int, Dim]]] = []
        named: dict[str, DimVar] = {}
        entries = [(key, _axes(key, value)) for key, value in given.items()]
        for _, axes in entries:
            for size in axes.values():
                for v in variables(size) if isinstance(size, Dim) else ():
                    if named.setdefault(v.name, v) != v:
                        raise DimError(
                            message(
                                f"Size {v.name} of {function} has two bounds, "
                                f"{_bounds_text(named[v.name])} and {_bounds_text(v)}",
                                None,
                                "Use one Dim for all of its axes",
                            )
                        )
        for key, axes in entries:
            sizes = {
                axis: size if isinstance(size, Dim) else _named(size, named)
                for axis, size in axes.items()
            }
            self._entries.append((key, () if isinstance(key, int) else path_of(key), sizes))

    def shapes(
        self, paths: Sequence[str], shapes: Sequence[Shape], names: Sequence[str]
    ) -> list[Shape]:
        """Shapes of the leaves of a call, with dynamic axes as symbolic sizes.

        Args:
            paths: text of the way to each leaf.
            shapes: actual shape of each leaf.
            names: names of the positional arguments.

        Raises:
            DimError: an entry fits no argument, or an argument has not as many axes.
        """
        result = [list(shape) for shape in shapes]
        steps = [path_of(path) for path in paths]
        for key, path, sizes in self._entries:
            if isinstance(key, int):
                path = path_of(names[key]) if -len(names) <= key < len(names) else ("",)
            found = [leaf for leaf, own in enumerate(steps) if own[: len(path)] == path]
            if not found:
                raise DimError(
                    message(
                        f"dynamic names {key!r}, but {self._function} is called with no such array",
                        None,
                        f"Use one of {', '.join(paths) or 'its arguments'}",
                    )
                )
            for leaf in found:
                rank = len(shapes[leaf])
                for axis, size in sizes.items():
                    if not -rank <= axis < rank:
                        raise DimError(
                            message(
                                f"dynamic names axis {axis} of {paths[leaf]}, which has shape "
                                f"{tuple(shapes[leaf])}",
                                None,
                                "Name an axis that it has",
                            )
                        )
                    result[leaf][axis] = size
        return [tuple(shape) for shape in result]


def _axes(key: str | int, value: Any) -> dict[int, Any]:
    axes = dict(value) if isinstance(value, Mapping) else {0: value}
    good = isinstance(key, str | int) and all(
        isinstance(axis, int) and isinstance(size, str | Dim) for axis, size in axes.items()
    )
    if not good:
        raise TypeError(
            message(
                f"dynamic={{{key!r}: {value!r}}} does not say which axes are dynamic",
                None,
                'Use an argument name and its axes, for example {"x": {0: "n"}}',
            )
        )
    return axes


def _named(name: str, known: Mapping[str, DimVar]) -> Dim:
    """The size of a name; without a Dim of that name it may be anything from 0 on."""
    variable = known.get(name)
    return dim(name, 0) if variable is None else dim(name, variable.min, variable.max)


def _bounds_text(variable: DimVar) -> str:
    return f"{variable.min}..{'' if variable.max is None else variable.max}"


def every_axis(paths: Sequence[str], shapes: Sequence[Sequence[int]]) -> list[Shape]:
    """Shapes with every axis a symbolic size; equal sizes get one name, that of the first."""
    names: dict[int, Dim] = {}
    taken: set[str] = set()
    result: list[Shape] = []
    for path, shape in zip(paths, shapes, strict=True):
        sizes: list[Size] = []
        for axis, size in enumerate(shape):
            if size not in names:
                stem = "_".join(path_of(path)) + f"_{axis}"
                name = stem if stem.isidentifier() else f"size_{len(names)}"
                while name in taken:
                    name += "_"
                taken.add(name)
                names[size] = dim(name, 0)
            sizes.append(names[size])
        result.append(tuple(sizes))
    return result


def above_one(shapes: Sequence[Shape], actual: Sequence[Sequence[int]]) -> list[Shape]:
    """Symbolic shapes narrowed to what most functions need: sizes 0 and 1 fixed, others above 1."""
    return [
        tuple(
            dim(next(iter(variables(size))).name, 2) if number > 1 else number
            for size, number in zip(shape, numbers, strict=True)
        )
        for shape, numbers in zip(shapes, actual, strict=True)
    ]
