"""Vectorise: run a function of one example on a batch, one rule per primitive.

A :class:`VmapTracer` holds a value of the parent trace with one extra, mapped axis. Operands
without one are shared by all examples; a primitive none of whose operands is mapped runs once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from trnx.core import Aval, Params, Primitive, Program, Size, Trace, Tracer, aval_of, tree
from trnx.core.dims import structurally_equal
from trnx.core.errors import ShapeError, TraceError, message, user_traceback
from trnx.core.program import eval_program
from trnx.core.program_cache import cached_by_program
from trnx.core.source import current_source
from trnx.core.tracing import current_trace, trace_program, use_trace
from trnx.transforms import axes
from trnx.transforms.arguments import argument_names, check_function, function_name


class VmapTracer(Tracer):
    """A value of the parent trace and its mapped axis; the aval is that of one example."""

    __slots__ = ("axis", "value")

    def __init__(self, trace: VmapTrace, value: Any, axis: int) -> None:
        self._trace = trace
        aval = aval_of(value)
        shape = aval.shape[:axis] + aval.shape[axis + 1 :]
        self.aval = Aval(shape, aval.dtype, aval.weak)
        self.source = current_source()
        self.value = value
        self.axis = axis

    def provenance(self) -> str:
        return self.value.provenance() if isinstance(self.value, Tracer) else ""


class VmapTrace(Trace):
    """Applies vmap rules.

    Args:
        parent: the trace batched computations go to.
        size: number of examples.
        name: name of the user's function, for error texts.
    """

    __slots__ = ("context", "size")

    kind = "vmap"

    def __init__(self, parent: Trace, size: Size, name: str = "") -> None:
        super().__init__(parent, name)
        self.size = size
        self.context = VmapContext()

    def split(self, operand: Any) -> tuple[Any, int | None]:
        """Batched value and mapped axis of an operand."""
        if isinstance(operand, VmapTracer) and operand._trace is self:
            return operand.value, operand.axis
        if isinstance(operand, Tracer):
            self.check_operand(operand)
        return operand, None

    def join(self, value: Any, axis: int | None) -> Any:
        """A tracer for a batched value; the bare value when no axis is mapped."""
        return value if axis is None else VmapTracer(self, value, axis)

    def process(
        self, primitive: Primitive, operands: Sequence[Any], params: Params
    ) -> Sequence[Any]:
        if not self.alive:
            raise TraceError(message(f"The vmap of {self.name} has ended", None, ""))
        assert self.parent is not None
        values: list[Any] = []
        dims: list[int | None] = []
        for operand in operands:
            value, axis = self.split(operand)
            values.append(value)
            dims.append(axis)
        token = current_trace.set(self.parent)
        try:
            if all(axis is None for axis in dims):
                return self.parent.process(primitive, values, params)
            rule = primitive.rule("vmap")
            outs, out_dims = rule(self.context, tuple(values), tuple(dims), self.size, **params)
        finally:
            current_trace.reset(token)
        if not primitive.multiple_results:
            outs, out_dims = (outs,), (out_dims,)
        return [self.join(value, axis) for value, axis in zip(outs, out_dims, strict=True)]


class VmapContext:
    """What vmap rules get: helpers to move and make axes, and vmap of sub-programs."""

    __slots__ = ()

    def move(self, value: Any, source: int, destination: int) -> Any:
        """`value` with one axis moved."""
        return axes.move_axis(value, source, destination)

    def broadcast(self, value: Any, size: Size, axis: int) -> Any:
        """`value` repeated `size` times along a new axis."""
        return axes.insert_axis(value, size, axis)

    def to_front(self, value: Any, dim: int | None, size: Size) -> Any:
        """`value` with its mapped axis first; an unmapped one is repeated."""
        if dim is None:
            return axes.insert_axis(value, size, 0)
        return axes.move_axis(value, dim, 0)

    def vmap(
        self,
        program: Program,
        size: Size,
        dims: tuple[int | None, ...],
        out_mapped: tuple[bool, ...] | None = None,
    ) -> tuple[Program, tuple[int | None, ...]]:
        """See :func:`vmap_program`."""
        return vmap_program(program, size, dims, out_mapped)

    def vmap_function(
        self,
        function: Callable[..., Sequence[Any]],
        args: Sequence[Any],
        dims: Sequence[int | None],
        size: Size,
    ) -> tuple[list[Any], list[int | None]]:
        """See :func:`vmap_flat`."""
        return vmap_flat(function, args, dims, size)

    def vmap_to_front(
        self,
        function: Callable[..., Sequence[Any]],
        args: Sequence[Any],
        dims: Sequence[int | None],
        size: Size,
    ) -> list[Any]:
        """:func:`vmap_flat` with every result mapped, at axis 0."""
        outs, axes = vmap_flat(function, args, dims, size)
        return [self.to_front(out, axis, size) for out, axis in zip(outs, axes, strict=True)]


def vmap_flat(
    function: Callable[..., Sequence[Any]],
    args: Sequence[Any],
    dims: Sequence[int | None],
    size: Size,
    name: str = "",
) -> tuple[list[Any], list[int | None]]:
    """Batched outputs of a function of flat arguments and their mapped axes (None: shared)."""
    trace = VmapTrace(current_trace.get(), size, name)
    try:
        with use_trace(trace):
            outs = function(*[trace.join(a, d) for a, d in zip(args, dims, strict=True)])
            pairs = [trace.split(out) for out in outs]
    finally:
        trace.end()
    return [value for value, _ in pairs], [axis for _, axis in pairs]


@cached_by_program
def vmap_program(
    program: Program,
    size: Size,
    dims: tuple[int | None, ...],
    out_mapped: tuple[bool, ...] | None = None,
) -> tuple[Program, tuple[int | None, ...]]:
    """The vmap of a program as a program.

    Args:
        program: a program of one example.
        size: number of examples.
        dims: mapped axis per input, None for inputs that are shared.
        out_mapped: outputs that must be mapped (axis 0); None leaves each as it comes.

    Returns:
        The batched program and the mapped axis of each output.
    """
    out_dims: list[int | None] = []

    def batched(*args: Any) -> list[Any]:
        outs, found = vmap_flat(
            lambda *values: eval_program(program, values), args, dims, size, program.name
        )
        if out_mapped is not None:
            for index, wanted in enumerate(out_mapped):
                if wanted:
                    outs[index] = VmapContext().to_front(outs[index], found[index], size)
                    found[index] = 0
        out_dims[:] = found
        return outs

    avals = [
        aval if dim is None else aval.with_shape((*aval.shape[:dim], size, *aval.shape[dim:]))
        for aval, dim in zip(program.in_avals, dims, strict=True)
    ]
    return trace_program(batched, avals, f"vmap_{program.name}"), tuple(out_dims)


# Public function --------------------------------------------------------------------------------


def vmap(
    function: Callable[..., Any],
    in_axes: Any = 0,
    out_axes: Any = 0,
    axis_size: int | None = None,
) -> Callable[..., Any]:
    """Map a function of one example over an axis of its arguments.

    Args:
        function: takes and returns trees of arrays.
        in_axes: mapped axis of the positional arguments: an int or None for all, or a tuple with
            an entry per argument, each an int, None or a tree prefix. Keyword arguments are mapped
            over axis 0.
        out_axes: where the mapped axis goes in the outputs: an int, None (the output must not
            depend on the example), or a tree prefix of the output.
        axis_size: number of examples; needed only when nothing is mapped.

    Returns:
        A function of batched arguments.

    Raises:
        ShapeError: mapped axes of different sizes, or an axis an argument does not have; the text
            names each argument with its shape and mapped axis.
    """
    check_function("vmap", function)
    name = function_name(function)

    @functools.wraps(function)
    @user_traceback
    def mapped(*args: Any, **kwargs: Any) -> Any:
        names = argument_names(function, args, kwargs)
        leaves: list[Any] = []
        dims: list[int | None] = []
        paths: list[str] = []
        if isinstance(in_axes, tuple | list) and len(in_axes) != len(args):
            raise ShapeError(
                message(
                    f"vmap of {name} has in_axes for {len(in_axes)} positional arguments "
                    f"but is called with {len(args)}",
                    None,
                    "Give one entry per positional argument",
                )
            )
        prefixes = in_axes if isinstance(in_axes, tuple | list) else (in_axes,) * len(args)
        entries = [*zip(args, prefixes, strict=True), *((value, 0) for value in kwargs.values())]
        for (value, prefix), argument in zip(entries, names, strict=True):
            tree.check_leaves(value, argument)
            leaves += tree.leaves(value)
            dims += axes.expand_prefix(prefix, value, f"in_axes of {argument}")
            paths += tree.paths(value, argument)
        dims = [_checked_axis(*item) for item in zip(dims, leaves, paths, strict=True)]
        size = _common_size(name, leaves, dims, paths, axis_size)
        structure = tree.structure((args, kwargs))
        out_structure: Any = None

        def flat(*values: Any) -> list[Any]:
            nonlocal out_structure
            inner_args, inner_kwargs = tree.unflatten(structure, values)
            result = function(*inner_args, **inner_kwargs)
            tree.check_leaves(result, "output", "value")
            flat_result, out_structure = tree.flatten(result)
            return flat_result

        outs, out_dims = vmap_flat(flat, leaves, dims, size, name)
        result = tree.unflatten(out_structure, outs)
        wanted = axes.expand_prefix(out_axes, result, "out_axes")
        return tree.unflatten(
            out_structure,
            [_place(name, *item, size) for item in zip(outs, out_dims, wanted, strict=True)],
        )

    return mapped


def _checked_axis(axis: int | None, leaf: Any, path: str) -> int | None:
    if axis is None:
        return None
    aval = aval_of(leaf)
    if not -aval.ndim <= axis < aval.ndim:
        raise ShapeError(
            message(
                f"vmap maps axis {axis} of {path}, which has type {aval}",
                None,
                f"Pass an array with more axes, or None in in_axes for {path}",
            )
        )
    return axis % aval.ndim


def _common_size(
    name: str,
    leaves: Sequence[Any],
    dims: Sequence[int | None],
    paths: Sequence[str],
    axis_size: int | None,
) -> Size:
    mapped = [
        (path, aval_of(leaf).shape, axis)
        for path, leaf, axis in zip(paths, leaves, dims, strict=True)
        if axis is not None
    ]
    sizes: list[Size] = [shape[axis] for _, shape, axis in mapped]
    if axis_size is not None:
        sizes.append(axis_size)
    if not sizes:
        raise ShapeError(
            message(
                f"vmap of {name} maps no argument, so the number of examples is unknown",
                None,
                "Give an axis in in_axes, or axis_size",
            )
        )
    if not all(structurally_equal(size, sizes[0]) for size in sizes):
        table = "; ".join(
            f"{path} has shape ({','.join(map(str, shape))}), mapped axis {axis} of size "
            f"{shape[axis]}"
            for path, shape, axis in mapped
        )
        extra = "" if axis_size is None else f"; axis_size is {axis_size}"
        raise ShapeError(
            message(
                f"vmap of {name} maps axes of different sizes: {table}{extra}",
                None,
                "Make the mapped axes equal, or pass None in in_axes for shared arguments",
            )
        )
    return sizes[0]


def _place(name: str, value: Any, axis: int | None, wanted: int | None, size: Size) -> Any:
    if wanted is None:
        if axis is None:
            return value
        raise ShapeError(
            message(
                f"An output of vmap of {name} depends on the example but has out_axes None",
                None,
                "Give the axis the examples go to",
            )
        )
    rank = aval_of(value).ndim + (axis is None)
    if not -rank <= wanted < rank:
        raise ShapeError(
            message(
                f"out_axes {wanted} of vmap of {name} is out of range for an output with {rank} "
                "axes",
                None,
                f"Use an axis from {-rank} to {rank - 1}",
            )
        )
    if axis is None:
        return axes.insert_axis(value, size, wanted % rank)
    return axes.move_axis(value, axis, wanted % rank)
