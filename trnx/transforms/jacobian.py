"""Whole matrices of derivatives: jacfwd, jacrev and hessian."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from trnx.core import Aval, DTypeError, Zero, aval_of, dtypes, message, tree
from trnx.core.errors import TraceError, user_traceback
from trnx.ops import functions as op
from trnx.transforms import axes, zeros
from trnx.transforms.arguments import argument_names, function_name
from trnx.transforms.grad import FlatFunction, check_differentiable
from trnx.transforms.jvp import jvp_flat
from trnx.transforms.linearize import Linearized, linearize_flat
from trnx.transforms.transpose import backward_pass
from trnx.transforms.vmap import vmap_flat


class _Inputs:
    """The arguments to differentiate, as leaves, and the function of these leaves."""

    def __init__(
        self,
        transform: str,
        function: Callable[..., Any],
        argnums: int | Sequence[int],
        has_aux: bool,
        args: Sequence[Any],
        kwargs: dict[str, Any],
    ) -> None:
        self.transform = transform
        self.name = function_name(function)
        numbers = (argnums,) if isinstance(argnums, int) else tuple(argnums)
        names = argument_names(function, args, kwargs)
        positions = []
        for number in numbers:
            if not -len(args) <= number < len(args):
                raise TraceError(
                    message(
                        f"{transform} of {self.name} has argnums {number} but {len(args)} "
                        "positional arguments",
                        None,
                        "Pass differentiated arguments by position",
                    )
                )
            positions.append(number % len(args))
        for i in positions:
            tree.check_leaves(args[i], names[i])
            for leaf, path in zip(tree.leaves(args[i]), tree.paths(args[i], names[i]), strict=True):
                check_differentiable(leaf, path, transform)
                self._check_real(leaf, path)
        chosen = tuple(args[i] for i in positions)
        self.leaves, structure = tree.flatten(chosen)
        self.structure = tree.structure(chosen[0]) if isinstance(argnums, int) else structure

        def rebuild(values: Sequence[Any]) -> tuple[Sequence[Any], dict[str, Any]]:
            full = list(args)
            for i, value in zip(positions, tree.unflatten(structure, values), strict=True):
                full[i] = value
            return full, kwargs

        self.function = FlatFunction(function, self.name, rebuild, has_aux)

    def _check_real(self, leaf: Any, path: str) -> None:
        aval = aval_of(leaf)
        if dtypes.is_complex(aval.dtype):
            raise DTypeError(
                message(
                    f"{self.transform} needs real inputs, but {path} has type {aval}",
                    None,
                    "Differentiate by real and imaginary parts",
                )
            )

    def check_outputs(self, outs: Sequence[Any]) -> None:
        """Raise DTypeError unless every output is a real float."""
        paths = tree.paths(tree.unflatten(self.function.structure, list(outs)), "output")
        for out, path in zip(outs, paths, strict=True):
            aval = aval_of(out)
            if not dtypes.is_float(aval.dtype):
                raise DTypeError(
                    message(
                        f"{self.transform} needs real float outputs, but {path} of {self.name} "
                        f"has type {aval}",
                        None,
                        "Return such values through has_aux",
                    )
                )

    def assemble(self, columns: Sequence[Sequence[Any]]) -> Any:
        """The tree of outputs, each leaf a tree of inputs, from ``columns[input][output]``."""
        count = self.function.structure.num_leaves
        rows = [
            tree.unflatten(self.structure, [column[i] for column in columns]) for i in range(count)
        ]
        return tree.unflatten(self.function.structure, rows)


def _basis(aval: Aval) -> Any:
    """``[size, *shape]``: the unit arrays of a type, one per element."""
    size = aval.size
    rows, columns = op.iota((size, size), 0), op.iota((size, size), 1)
    eye = op.convert(op.eq(rows, columns), aval.dtype)
    return op.reshape(eye, (size, *aval.shape))


def jacfwd(
    function: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """A function that gives the Jacobian, column by column in forward mode.

    The cost grows with the number of input elements: right for few inputs and many outputs.

    Args:
        function: takes and returns trees of real float arrays, or with `has_aux` a pair
            (output, tree of arrays).
        argnums: positional arguments to differentiate, an int or a sequence.
        has_aux: the function returns extra results that are not differentiated.

    Returns:
        A function giving the structure of the output; each leaf is a tree like the argument (a
        tuple of them for several argnums) of arrays ``[*output shape, *input shape]``. With
        `has_aux` a pair (Jacobian, aux).

    Raises:
        DTypeError: an input or output is no real float.
    """

    @functools.wraps(function)
    @user_traceback
    def jacobian(*args: Any, **kwargs: Any) -> Any:
        inputs = _Inputs("jacfwd", function, argnums, has_aux, args, kwargs)
        columns: list[list[Any]] = []
        aux: Any = None
        for number, leaf in enumerate(inputs.leaves):
            outs, aux, tangents = _pushed(inputs, number)
            inputs.check_outputs(outs)
            in_shape = aval_of(leaf).shape
            columns.append(
                [
                    op.reshape(tangent, (*aval_of(out).shape, *in_shape))
                    for out, tangent in zip(outs, tangents, strict=True)
                ]
            )
        result = inputs.assemble(columns)
        return (result, aux) if has_aux else result

    return jacobian


def _pushed(inputs: _Inputs, number: int) -> tuple[list[Any], Any, list[Any]]:
    """Outputs, aux, and output tangents ``[*shape, size]`` for the unit tangents of one input."""
    leaves, function = inputs.leaves, inputs.function
    basis = _basis(aval_of(leaves[number]).strong())
    size = aval_of(basis).shape[0]

    def push(tangent: Any) -> list[Any]:
        full: list[Any] = [zeros.zero_of(leaf) for leaf in leaves]
        full[number] = tangent
        outs, tangents = jvp_flat(function, leaves, full, inputs.name)
        count = function.structure.num_leaves
        return [*outs, *zeros.instantiate_all(tangents[:count])]

    values, dims = vmap_flat(push, [basis], [0], size, inputs.name)
    primal = len(values) - function.structure.num_leaves
    # Outputs are the same for every tangent, so one of them is all.
    same = [
        value if dim is None else op.take(value, op.scalar(0, dtypes.int32), dim)
        for value, dim in zip(values[:primal], dims[:primal], strict=True)
    ]
    outs, aux = function.split(same)
    tangents = [
        _last(value, dim, size) for value, dim in zip(values[primal:], dims[primal:], strict=True)
    ]
    return outs, aux, tangents


def _last(value: Any, dim: int | None, size: Any) -> Any:
    """A batched value with its mapped axis last."""
    rank = aval_of(value).ndim
    if dim is None:
        return axes.insert_axis(value, size, rank)
    return axes.move_axis(value, dim, rank - 1)


def jacrev(
    function: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """A function that gives the Jacobian, row by row in reverse mode.

    The cost grows with the number of output elements: right for many inputs and few outputs.

    Args:
        function: see :func:`jacfwd`.
        argnums: see :func:`jacfwd`.
        has_aux: see :func:`jacfwd`.

    Returns:
        See :func:`jacfwd`.

    Raises:
        DTypeError: an input or output is no real float.
    """

    @functools.wraps(function)
    @user_traceback
    def jacobian(*args: Any, **kwargs: Any) -> Any:
        inputs = _Inputs("jacrev", function, argnums, has_aux, args, kwargs)
        leaves = inputs.leaves
        result = linearize_flat(inputs.function, leaves, (True,) * len(leaves), inputs.name)
        outs, aux = inputs.function.split(result.outs)
        inputs.check_outputs(outs)
        rows = [_pulled(result, leaves, number) for number in range(len(outs))]
        columns = [
            [
                op.reshape(rows[i][j], (*aval_of(out).shape, *aval_of(leaf).shape))
                for i, out in enumerate(outs)
            ]
            for j, leaf in enumerate(leaves)
        ]
        jac = inputs.assemble(columns)
        return (jac, aux) if has_aux else jac

    return jacobian


def _pulled(result: Linearized, leaves: Sequence[Any], number: int) -> list[Any]:
    """Input cotangents ``[size, *shape]`` for the unit cotangents of one output."""
    program, outs = result.program, result.outs
    basis = _basis(aval_of(outs[number]).strong())
    size = aval_of(basis).shape[0]

    def pull(ct: Any) -> list[Any]:
        cts = [
            ct if i == number else Zero(aval_of(out).strong())
            for i, (out, flag) in enumerate(zip(outs, result.out_nonzero, strict=True))
            if flag
        ]
        linear = (True,) * len(leaves)
        grads = backward_pass(program, linear, [None] * len(leaves), cts)
        return zeros.instantiate_all(grads)

    values, dims = vmap_flat(pull, [basis], [0], size, program.name)
    return [
        axes.insert_axis(value, size, 0) if dim is None else axes.move_axis(value, dim, 0)
        for value, dim in zip(values, dims, strict=True)
    ]


def hessian(
    function: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """A function that gives the second derivatives: jacfwd of jacrev.

    Args:
        function: see :func:`jacfwd`.
        argnums: see :func:`jacfwd`.
        has_aux: see :func:`jacfwd`.

    Returns:
        A function giving the structure of the output; each leaf is a tree of trees like the
        argument, of arrays ``[*output shape, *input shape, *input shape]``.

    Raises:
        DTypeError: an input or output is no real float.
    """
    return jacfwd(jacrev(function, argnums, has_aux), argnums, has_aux)
