"""checkpoint: trade computation for memory in reverse mode."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from trnx.core import (
    Primitive,
    TraceError,
    Tracer,
    aval_of,
    constants_to_inputs,
    current_trace,
    message,
    prune,
    trace_program,
    tree,
    user_traceback,
)
from trnx.core.tracing import EVAL_TRACE
from trnx.ops.checkpoint import Policy, bind
from trnx.transforms.arguments import (
    argument_names,
    argument_positions,
    check_function,
    function_name,
)


class checkpoint_policies:
    """What a checkpoint may keep; each is a `policy` of :func:`checkpoint`.

    A policy is ``policy(primitive, *avals, **params) -> bool``; it is asked for every equation and
    says whether its results are kept.
    """

    @staticmethod
    def nothing_saveable(primitive: Primitive, *avals: Any, **params: Any) -> bool:
        """Recompute everything: the default."""
        return False

    @staticmethod
    def everything_saveable(primitive: Primitive, *avals: Any, **params: Any) -> bool:
        """Keep everything, as without a checkpoint."""
        return True

    @staticmethod
    def dots_saveable(primitive: Primitive, *avals: Any, **params: Any) -> bool:
        """Keep results of matrix products."""
        return primitive.name == "dot_general"

    @staticmethod
    def dots_with_no_batch_dims_saveable(primitive: Primitive, *avals: Any, **params: Any) -> bool:
        """Keep results of matrix products without batch axes: weights times activations."""
        return primitive.name == "dot_general" and params["batch"] == ((), ())


def checkpoint(
    fun: Callable[..., Any] | None = None,
    *,
    policy: Callable[..., bool] | None = None,
    prevent_cse: bool = True,
    static_argnums: int | Sequence[int] = (),
) -> Callable[..., Any]:
    """A function that keeps its arguments for reverse mode and computes the rest again.

    Args:
        fun: a function of trees of arrays. Without it `checkpoint(...)` is a decorator.
        policy: ``policy(primitive, *avals, **params)`` says which results are kept after all; see
            :class:`checkpoint_policies`. None keeps nothing.
        prevent_cse: keep the compiler from sharing the second computation with the first, which
            would keep its values alive. False is right inside loops, where they cannot be shared.
        static_argnums: positions of arguments that are Python values.

    Returns:
        A function with the values and derivatives of `fun`.
    """
    if fun is None:
        return functools.partial(
            checkpoint, policy=policy, prevent_cse=prevent_cse, static_argnums=static_argnums
        )
    check_function("checkpoint", fun)
    function = fun
    name = function_name(function)
    numbers = argument_positions("checkpoint", "static_argnums", static_argnums)
    kept = None if policy is None else Policy(function_name(policy), policy)

    @functools.wraps(function)
    @user_traceback
    def checkpointed(*args: Any, **kwargs: Any) -> Any:
        is_traced = any(isinstance(leaf, Tracer) for leaf in tree.leaves((args, kwargs)))
        if current_trace.get() is EVAL_TRACE and not is_traced:
            return function(*args, **kwargs)
        statics = {number % len(args) for number in numbers if -len(args) <= number < len(args)}
        names = argument_names(function, args, kwargs)
        dynamic = [value for index, value in enumerate(args) if index not in statics]
        paths: list[str] = []
        for index, (value, argument) in enumerate(
            zip((*args, *kwargs.values()), names, strict=True)
        ):
            if index in statics:
                _check_static(name, value, argument)
                continue
            tree.check_leaves(value, argument)
            if index < len(args):
                paths += tree.paths(value, argument)
        for key in sorted(kwargs):
            paths += tree.paths(kwargs[key], key)
        leaves, structure = tree.flatten((dynamic, kwargs))
        out_structure: list[tree.TreeDef] = []

        def flat(*values: Any) -> list[Any]:
            inner, named = tree.unflatten(structure, values)
            for index in sorted(statics):
                inner.insert(index, args[index])
            result = function(*inner, **named)
            tree.check_leaves(result, "output", "value")
            outs, found = tree.flatten(result)
            out_structure.append(found)
            return outs

        traced = trace_program(flat, [aval_of(leaf) for leaf in leaves], name, paths)
        program, constants = constants_to_inputs(prune(traced))
        outs = bind([*constants, *leaves], program, kept, prevent_cse, recompute=False)
        return tree.unflatten(out_structure[0], outs)

    return checkpointed


def _check_static(name: str, value: Any, argument: str) -> None:
    for leaf in tree.leaves(value):
        if isinstance(leaf, Tracer):
            raise TraceError(
                message(
                    f"Static argument {argument} of checkpoint of {name} holds a traced value "
                    f"{leaf.aval}",
                    None,
                    "Leave it out of static_argnums",
                )
            )
