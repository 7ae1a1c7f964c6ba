"""Derivatives as users call them: grad, value_and_grad, jvp, vjp, linearize."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from trnx.core import Aval, Zero, aval_of, dtypes, is_array_like, same_shape, tree
from trnx.core.errors import (
    ArgumentError,
    DTypeError,
    ShapeError,
    TraceError,
    message,
    user_traceback,
)
from trnx.core.program import eval_program
from trnx.transforms import zeros
from trnx.transforms.arguments import (
    argument_names,
    argument_positions,
    check_function,
    function_name,
)
from trnx.transforms.jvp import jvp_flat
from trnx.transforms.linearize import Linearized, linearize_flat
from trnx.transforms.transpose import backward_pass


class FlatFunction:
    """A function of trees as a function of flat leaves; remembers the structure of its output."""

    __slots__ = ("aux", "function", "has_aux", "name", "rebuild", "structure")

    def __init__(
        self,
        function: Callable[..., Any],
        name: str,
        rebuild: Callable[[Sequence[Any]], tuple[Sequence[Any], dict[str, Any]]],
        has_aux: bool = False,
    ) -> None:
        self.function = function
        self.name = name
        self.rebuild = rebuild
        self.has_aux = has_aux
        self.structure: Any = None
        self.aux: Any = None

    def __call__(self, *leaves: Any) -> list[Any]:
        args, kwargs = self.rebuild(leaves)
        result = self.function(*args, **kwargs)
        aux_leaves: list[Any] = []
        if self.has_aux:
            if not isinstance(result, tuple) or len(result) != 2:
                found = aval_of(result) if is_array_like(result) else type(result).__name__
                raise TraceError(
                    message(
                        f"{self.name} is differentiated with has_aux but returns {found}",
                        None,
                        "Return a pair (output, aux)",
                    )
                )
            result, aux = result
            aux_leaves, self.aux = tree.flatten(aux)
        tree.check_leaves(result, "output", "value")
        out_leaves, self.structure = tree.flatten(result)
        return out_leaves + aux_leaves

    def split(self, values: Sequence[Any]) -> tuple[list[Any], Any]:
        """Output leaves and the aux tree."""
        count = self.structure.num_leaves
        aux = tree.unflatten(self.aux, values[count:]) if self.has_aux else None
        return list(values[:count]), aux


def check_differentiable(leaf: Any, path: str, transform: str) -> None:
    """Raise DTypeError unless an input is a float or complex array."""
    aval = aval_of(leaf)
    if not zeros.has_tangent(aval):
        example = " (write 3.0 instead of 3)" if type(leaf) is int else ""
        raise DTypeError(
            message(
                f"{transform} needs a float input, but {path} has type {aval}",
                None,
                f"Cast it to float32, or leave it out of argnums{example}",
            )
        )


def _one_hot(value: Any) -> Any:
    return zeros.fill(1, aval_of(value).strong())


def _check_scalar(name: str, leaves: Sequence[Any], structure: Any, transform: str) -> None:
    if len(leaves) != 1 or structure.num_children != 0:
        raise TraceError(
            message(
                f"{transform} needs a scalar output, but {name} returns a tree of "
                f"{len(leaves)} arrays",
                None,
                "Return one scalar, or use vjp; extra results go into has_aux",
            )
        )
    aval = aval_of(leaves[0])
    if aval.ndim:
        raise ShapeError(
            message(
                f"{transform} needs a scalar output, but {name} returns {aval}",
                None,
                "Reduce it with sum or mean, or use vjp",
            )
        )
    if dtypes.is_complex(aval.dtype) or not zeros.has_tangent(aval):
        raise DTypeError(
            message(
                f"{transform} needs a real float output, but {name} returns {aval}",
                None,
                "Return a real number, for example abs(z)**2 of a complex one",
            )
        )


def value_and_grad(
    function: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
) -> Callable[..., Any]:
    """A function that gives the value of `function` and its gradient.

    Args:
        function: returns a real float scalar, or with `has_aux` a pair (scalar, tree of arrays).
        argnums: positional arguments to differentiate, an int or a sequence; each may be a tree of
            float arrays.
        has_aux: the function returns extra results that are not differentiated.

    Returns:
        A function giving ``(value, gradient)`` or ``((value, aux), gradient)``. The gradient has
        the structure, shapes and dtypes of the argument; a tuple of them for several argnums.

    Raises:
        DTypeError: integer or bool input, complex output.
        ShapeError: the output is no scalar.
    """
    return _value_and_grad(function, argnums, has_aux, "value_and_grad")


def _value_and_grad(
    function: Callable[..., Any], argnums: int | Sequence[int], has_aux: bool, transform: str
) -> Callable[..., Any]:
    check_function(transform, function)
    name = function_name(function)
    numbers = argument_positions(transform, "argnums", argnums)

    @functools.wraps(function)
    @user_traceback
    def differentiated(*args: Any, **kwargs: Any) -> Any:
        positions = []
        for number in numbers:
            if not -len(args) <= number < len(args):
                raise TraceError(
                    message(
                        f"{transform} of {name} has argnums {number} but {len(args)} positional "
                        "arguments",
                        None,
                        "Pass differentiated arguments by position",
                    )
                )
            positions.append(number % len(args))
        names = argument_names(function, args, kwargs)
        chosen = tuple(args[i] for i in positions)
        for i in positions:
            tree.check_leaves(args[i], names[i])
            for leaf, path in zip(tree.leaves(args[i]), tree.paths(args[i], names[i]), strict=True):
                check_differentiable(leaf, path, transform)
        leaves, structure = tree.flatten(chosen)

        def rebuild(values: Sequence[Any]) -> tuple[Sequence[Any], dict[str, Any]]:
            full = list(args)
            for i, value in zip(positions, tree.unflatten(structure, values), strict=True):
                full[i] = value
            return full, kwargs

        flat = FlatFunction(function, name, rebuild, has_aux)
        result = linearize_flat(flat, leaves, (True,) * len(leaves), name)
        outs, aux = flat.split(result.outs)
        _check_scalar(name, outs, flat.structure, transform)
        gradient = _pull_back(result, [_one_hot(outs[0])], 1)
        grads = tree.unflatten(structure, gradient)
        value = zeros.as_array(outs[0])
        value = (value, aux) if has_aux else value
        return value, grads[0] if isinstance(argnums, int) else grads

    return differentiated


def _pull_back(result: Linearized, cotangents: Sequence[Any], count: int) -> list[Any]:
    """Cotangents of every input from those of the first `count` outputs, zeros as arrays."""
    nonzero_cts = [
        cotangents[index] if index < count else Zero(aval_of(result.outs[index]).strong())
        for index, flag in enumerate(result.out_nonzero)
        if flag
    ]
    program = result.program
    linear = (True,) * len(program.inputs)
    grads = backward_pass(program, linear, [None] * len(linear), nonzero_cts)
    return [zeros.as_array(zeros.instantiate(g)) for g in grads]


def grad(
    function: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
) -> Callable[..., Any]:
    """A function that gives the gradient of a scalar function.

    Args:
        function: see :func:`value_and_grad`.
        argnums: see :func:`value_and_grad`.
        has_aux: see :func:`value_and_grad`; the result is then ``(gradient, aux)``.

    Raises:
        DTypeError: integer or bool input, complex output.
        ShapeError: the output is no scalar.
    """
    both = _value_and_grad(function, argnums, has_aux, "grad")

    @functools.wraps(function)
    @user_traceback
    def gradient(*args: Any, **kwargs: Any) -> Any:
        value, grads = both(*args, **kwargs)
        return (grads, value[1]) if has_aux else grads

    return gradient


def _check_like(values: Any, like: Any, transform: str, what: str, of: str) -> list[Any]:
    """Leaves of `values`, checked to match those of `like` in structure, shape and dtype."""
    leaves, structure = tree.flatten(values)
    like_leaves, like_structure = tree.flatten(like)
    if structure != like_structure:
        raise TraceError(
            message(
                f"The {what}s of {transform} have another structure than the {of}s: "
                f"{structure} and {like_structure}",
                None,
                f"Pass one {what} per {of}, in the same containers",
            )
        )
    for leaf, other, path in zip(leaves, like_leaves, tree.paths(values, what), strict=True):
        tree.check_leaves(leaf, path)
        own, wanted = aval_of(leaf), aval_of(other)
        same_type = own.dtype == wanted.dtype or own.weak
        if not same_shape(own.shape, wanted.shape) or not same_type:
            raise ShapeError(
                message(
                    f"The {path} of {transform} has type {own} but its {of} has type {wanted}",
                    None,
                    f"Give the {what} the shape and dtype of the {of}",
                )
            )
    return [
        _as_dtype(leaf, aval_of(other).strong())
        for leaf, other in zip(leaves, like_leaves, strict=True)
    ]


def _as_dtype(leaf: Any, aval: Aval) -> Any:
    """A Python number as a scalar of the dtype it stands for; arrays unchanged."""
    return zeros.fill(leaf, aval) if isinstance(leaf, int | float | complex) else leaf


def _positional(
    function: Callable[..., Any], primals: Sequence[Any], transform: str, has_aux: bool = False
) -> tuple[FlatFunction, list[Any]]:
    check_function(transform, function)
    if not isinstance(primals, tuple | list):
        raise ArgumentError(
            message(
                f"{transform} takes the primals as a tuple, one per argument, and got a value of "
                f"type {type(primals).__name__}",
                None,
                "Pass (x,) for one argument",
            )
        )
    name = function_name(function)
    names = argument_names(function, primals, {})
    for primal, argument in zip(primals, names, strict=True):
        tree.check_leaves(primal, argument)
        for leaf, path in zip(tree.leaves(primal), tree.paths(primal, argument), strict=True):
            check_differentiable(leaf, path, transform)
    leaves, structure = tree.flatten(tuple(primals))
    return FlatFunction(
        function, name, lambda v: (tree.unflatten(structure, v), {}), has_aux
    ), leaves


@user_traceback
def jvp(
    function: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any]
) -> tuple[Any, Any]:
    """Value and directional derivative.

    Args:
        function: takes trees of float arrays.
        primals: positional arguments, where to differentiate.
        tangents: the direction, with the structure, shapes and dtypes of `primals`.

    Returns:
        The output and its tangent, of the same structure. An output of integer or bool dtype has a
        float32 tangent of zeros.

    Raises:
        DTypeError: a primal is no float.
        ShapeError: a tangent differs from its primal in shape or dtype.
    """
    flat, leaves = _positional(function, primals, "jvp")
    directions = _check_like(tuple(tangents), tuple(primals), "jvp", "tangent", "primal")
    outs, out_tangents = jvp_flat(flat, leaves, directions, flat.name)
    return (
        tree.unflatten(flat.structure, list(map(zeros.as_array, outs))),
        tree.unflatten(flat.structure, [_full_tangent(t) for t in out_tangents]),
    )


def _full_tangent(tangent: Any) -> Any:
    if isinstance(tangent, Zero) and not zeros.has_tangent(tangent.aval):
        tangent = Zero(tangent.aval.with_dtype(dtypes.float32))
    return zeros.as_array(zeros.instantiate(tangent))


@user_traceback
def linearize(function: Callable[..., Any], *primals: Any) -> tuple[Any, Callable[..., Any]]:
    """Value and the linear function that maps tangents to output tangents.

    The primal computation runs once; the linear function can be called many times.

    Raises:
        DTypeError: a primal is no float.
    """
    flat, leaves = _positional(function, primals, "linearize")
    result = linearize_flat(flat, leaves, (True,) * len(leaves), flat.name)

    @user_traceback
    def push_forward(*tangents: Any) -> Any:
        directions = _check_like(tangents, primals, "linearize", "tangent", "primal")
        found = iter(eval_program(result.program, directions))
        out_tangents = [
            _full_tangent(next(found) if flag else zeros.zero_of(out))
            for flag, out in zip(result.out_nonzero, result.outs, strict=True)
        ]
        return tree.unflatten(flat.structure, out_tangents)

    outs = list(map(zeros.as_array, result.outs))
    return tree.unflatten(flat.structure, outs), push_forward


@user_traceback
def vjp(function: Callable[..., Any], *primals: Any, has_aux: bool = False) -> tuple[Any, ...]:
    """Value and the function that maps output cotangents to input cotangents.

    Args:
        function: takes trees of float arrays, returns a tree of arrays, or with `has_aux` a pair.
        primals: positional arguments.
        has_aux: the function returns extra results that are not differentiated.

    Returns:
        ``(out, pull_back)`` or ``(out, pull_back, aux)``; ``pull_back(cotangents)`` takes the
        structure of the output and returns a tuple with an entry per primal.

    Raises:
        DTypeError: a primal is no float.
    """
    flat, leaves = _positional(function, primals, "vjp", has_aux)
    result = linearize_flat(flat, leaves, (True,) * len(leaves), flat.name)
    outs, aux = flat.split(result.outs)
    out_tree = tree.unflatten(flat.structure, list(map(zeros.as_array, outs)))

    @user_traceback
    def pull_back(cotangents: Any) -> tuple[Any, ...]:
        cts = _check_like(cotangents, out_tree, "vjp", "cotangent", "output")
        grads = iter(_pull_back(result, cts, len(cts)))
        return tuple(tree.map(lambda _: next(grads), primal) for primal in primals)

    if has_aux:
        return out_tree, pull_back, aux
    return out_tree, pull_back
