"""Functions with derivatives of their own: custom_jvp and custom_vjp.

A call under a transform traces the function and binds `custom_jvp` or `custom_vjp`, whose rules
call the user's derivative. The derivative of a `custom_vjp` call is a `custom_tangent`: a linear
function of which only the transpose is known.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trnx.core import (
    Annotation,
    Aval,
    Linear,
    Primitive,
    ShapeError,
    Size,
    TraceError,
    Tracer,
    aval_of,
    constants_to_inputs,
    current_trace,
    dtypes,
    message,
    primitives,
    prune,
    same_shape,
    trace_program,
    tree,
    user_traceback,
)
from trnx.core.tracing import EVAL_TRACE
from trnx.ops.custom import (
    BatchedPullBack,
    JvpRule,
    PullBack,
    VjpRule,
    custom_jvp_p,
    custom_vjp_p,
)
from trnx.transforms import zeros
from trnx.transforms.arguments import argument_names, function_name

Tree = Any


# ---------------------------------------------------------------- calls
@dataclass(frozen=True)
class _Call:
    """A call of a function with a rule, taken apart.

    Attributes:
        name: of the function.
        statics: arguments of `nondiff_argnums`, in order of their positions.
        paths: names of the leaves of the other arguments.
        structure: of the tuple of the other arguments.
        out_structure: of the result.
    """

    name: str
    statics: tuple[Any, ...]
    paths: tuple[str, ...]
    structure: tree.TreeDef
    out_structure: tree.TreeDef

    def arguments(self, leaves: Sequence[Any]) -> Any:
        """The tuple of arguments, with arrays in place of bare numbers."""
        return tree.unflatten(self.structure, [_as_array(leaf) for leaf in leaves])


def _as_array(value: Any) -> Any:
    """A traced value or an array; rules of users need not know numbers and NumPy scalars."""
    if isinstance(value, bool | int | float | complex | np.generic):
        aval = aval_of(value)
        return primitives["convert"].bind(value, dtype=aval.dtype, weak=aval.weak)
    return value


class _Custom:
    """What custom_jvp and custom_vjp share: calling, and taking arguments apart."""

    kind = ""

    def __init__(self, fun: Callable[..., Any], nondiff_argnums: int | Sequence[int] = ()) -> None:
        if not callable(fun):
            raise TypeError(
                message(
                    f"{self.kind} needs a function and got {type(fun).__name__}", None, "Pass one"
                )
            )
        functools.update_wrapper(self, fun)
        self.fun = fun
        self.name = function_name(fun)
        numbers = (nondiff_argnums,) if isinstance(nondiff_argnums, int) else nondiff_argnums
        self.nondiff_argnums = tuple(sorted(set(numbers)))

    @user_traceback
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The value of the function; under a transform, with its derivative rule."""
        return self._apply(args, kwargs)

    def _apply(self, args: Sequence[Any], kwargs: Any) -> Any:
        raise NotImplementedError

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def __repr__(self) -> str:
        return f"<{self.kind} of {self.name}>"

    def _bind(self, primitive: Primitive, args: Sequence[Any], kwargs: Any, rule: Any) -> Any:
        """Run the function, or bind it with the rule that ``rule(call)`` gives."""
        positional = self._positional(args, kwargs)
        if current_trace.get() is EVAL_TRACE and not any(
            isinstance(leaf, Tracer) for leaf in tree.leaves(positional)
        ):
            return self.fun(*positional)
        names = argument_names(self.fun, positional, {})
        dynamic: list[Any] = []
        statics: list[Any] = []
        paths: list[str] = []
        for index, (value, name) in enumerate(zip(positional, names, strict=True)):
            if index in self.nondiff_argnums:
                statics.append(self._checked_static(value, name))
                continue
            tree.check_leaves(value, name)
            dynamic.append(value)
            paths += tree.paths(value, name)
        leaves, structure = tree.flatten(tuple(dynamic))
        out_structure: list[tree.TreeDef] = []

        def flat(*values: Any) -> list[Any]:
            result = self.fun(*self._merged(tree.unflatten(structure, values), statics))
            tree.check_leaves(result, "output", "value")
            outs, found = tree.flatten(result)
            out_structure.append(found)
            return outs

        traced = trace_program(flat, [aval_of(leaf) for leaf in leaves], self.name, paths)
        program, constants = constants_to_inputs(prune(traced))
        call = _Call(self.name, tuple(statics), tuple(paths), structure, out_structure[0])
        outs = primitive.bind(
            *constants, *leaves, program=program, rule=rule(call), consts=len(constants)
        )
        return tree.unflatten(out_structure[0], outs)

    def _positional(self, args: Sequence[Any], kwargs: Any) -> list[Any]:
        """All arguments by position, defaults included."""
        try:
            signature = inspect.signature(self.fun)
        except (TypeError, ValueError):  # a builtin without a signature
            signature = None
        if signature is None:
            if kwargs:
                raise TraceError(
                    message(
                        f"{self.name} has no signature, so keyword arguments have no position",
                        None,
                        "Pass arguments by position",
                    )
                )
            return list(args)
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        if bound.kwargs:
            raise TraceError(
                message(
                    f"{self.kind} function {self.name} has keyword-only arguments "
                    f"{', '.join(bound.kwargs)}",
                    None,
                    "Let the function take them by position",
                )
            )
        return list(bound.args)

    def _checked_static(self, value: Any, name: str) -> Any:
        for leaf in tree.leaves(value):
            if isinstance(leaf, Tracer):
                raise TraceError(
                    message(
                        f"Argument {name} of {self.kind} function {self.name} is in "
                        f"nondiff_argnums and holds a traced value {leaf.aval}",
                        None,
                        "Take it out of nondiff_argnums, and give it a zero derivative in the rule",
                    )
                )
        return value

    def _merged(self, dynamic: Sequence[Any], statics: Sequence[Any]) -> list[Any]:
        """All arguments in order."""
        merged = list(dynamic)
        for index, value in zip(self.nondiff_argnums, statics, strict=True):
            merged.insert(index, value)
        return merged

    def _missing(self, method: str) -> TraceError:
        return TraceError(
            message(
                f"The {self.kind} function {self.name} has no derivative rule",
                None,
                f"Give it one with {self.name}.{method}",
            )
        )


def _output_leaves(what: str, call: _Call, output: Tree) -> tuple[list[Any], list[str]]:
    """Leaves of what a rule returns as output, and their paths."""
    tree.check_leaves(output, "output", "value")
    leaves, structure = tree.flatten(output)
    if structure != call.out_structure:
        raise TraceError(
            message(
                f"{what} returns an output of structure {structure}, and {call.name} one of "
                f"structure {call.out_structure}",
                None,
                f"Return the output of {call.name}",
            )
        )
    return leaves, tree.paths(output, "output")


def _checked_leaf(what: str, path: str, leaf: Any, aval: Aval) -> Any:
    """A derivative that a rule returns, checked to have the type it must have."""
    tree.check_leaves(leaf, path, "value")
    own = aval_of(leaf)
    if same_shape(own.shape, aval.shape) and own.dtype == aval.dtype:
        return zeros.fill(leaf, aval) if isinstance(leaf, int | float | complex) else leaf
    if own.weak and not own.shape and not aval.shape:
        return primitives["convert"].bind(leaf, dtype=aval.dtype, weak=False)
    raise ShapeError(
        message(
            f"{what} for {path} of type {own}, which should be {aval}",
            None,
            "Return it with the shape and dtype of the value it belongs to",
        )
    )


# ---------------------------------------------------------------- custom_jvp
class custom_jvp(_Custom):
    """Give a function a forward derivative; reverse mode transposes it.

    ::

        @trnx.custom_jvp
        def f(x, y): ...

        @f.defjvp
        def f_jvp(primals, tangents):
            x, y = primals
            t, u = tangents
            return f(x, y), ...          # value, and its tangent, linear in t and u

    Args:
        fun: a function of trees of arrays.
        nondiff_argnums: positions of arguments that are Python values; the rule takes them first,
            ``f_jvp(*values, primals, tangents)``.

    Tangents of integer arguments are f32 zeros. Values that `fun` captures from outside cannot be
    differentiated through it: pass them as arguments.
    """

    kind = "custom_jvp"

    def __init__(self, fun: Callable[..., Any], nondiff_argnums: int | Sequence[int] = ()) -> None:
        super().__init__(fun, nondiff_argnums)
        self.jvp: Callable[..., Any] | None = None

    def defjvp(self, jvp: Callable[..., Any]) -> Callable[..., Any]:
        """Set the rule ``jvp(primals, tangents) -> (output, output tangent)``; returns it."""
        self.jvp = jvp
        return jvp

    def defjvps(self, *jvps: Callable[..., Any] | None) -> None:
        """Set a rule per argument: ``jvp(tangent, output, *primals)`` gives its share.

        None stands for an argument without influence on the tangent.
        """
        if self.nondiff_argnums:
            raise TraceError(
                message(
                    f"defjvps of {self.name} cannot be used with nondiff_argnums",
                    None,
                    "Use defjvp",
                )
            )

        def jvp(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
            output = self(*primals)
            shares = [
                rule(tangent, output, *primals)
                for rule, tangent in zip(jvps, tangents, strict=True)
                if rule is not None
            ]
            if not shares:
                return output, tree.map(lambda x: zeros.fill(0, aval_of(x).strong()), output)
            return output, functools.reduce(lambda a, b: tree.map(zeros.add, a, b), shares)

        self.jvp = jvp

    def _apply(self, args: Sequence[Any], kwargs: Any) -> Any:
        if self.jvp is None:
            raise self._missing("defjvp")
        rule = self.jvp
        name = function_name(rule)
        return self._bind(custom_jvp_p, args, kwargs, lambda call: _UserJvp(name, rule, call))


@dataclass(frozen=True)
class _UserJvp(JvpRule):
    rule: Callable[..., Any]
    call: _Call

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        call = self.call
        what = f"The jvp rule {self.name} of {call.name}"
        result = self.rule(*call.statics, call.arguments(primals), call.arguments(tangents))
        if not isinstance(result, tuple | list) or len(result) != 2:
            raise TraceError(
                message(f"{what} returns no pair", None, "Return (output, output tangent)")
            )
        outs, paths = _output_leaves(what, call, result[0])
        given, structure = tree.flatten(result[1])
        if structure != call.out_structure:
            raise TraceError(
                message(
                    f"{what} returns a tangent of structure {structure} for an output of "
                    f"structure {call.out_structure}",
                    None,
                    "Return one tangent per output, in the same containers",
                )
            )
        out_tangents = [
            _checked_leaf(f"{what} returns a tangent", path, tangent, _tangent_type(aval_of(out)))
            for out, tangent, path in zip(outs, given, paths, strict=True)
        ]
        return outs, out_tangents


def _tangent_type(aval: Aval) -> Aval:
    """Type of the tangent of a value as users see it: f32 for integers and bools."""
    strong = aval.strong()
    return strong if zeros.has_tangent(strong) else strong.with_dtype(dtypes.float32)


# ---------------------------------------------------------------- custom_vjp
class custom_vjp(_Custom):
    """Give a function a reverse derivative.

    ::

        @trnx.custom_vjp
        def f(x, y): ...

        def f_fwd(x, y):
            return f(x, y), (x, y)       # value, and what f_bwd needs

        def f_bwd(residuals, ct):
            x, y = residuals
            return ..., ...              # a cotangent per argument, or None for zero

        f.defvjp(f_fwd, f_bwd)

    Args:
        fun: a function of trees of arrays.
        nondiff_argnums: positions of arguments that are Python values; `fwd` takes all arguments,
            ``bwd(*values, residuals, ct)`` takes these first and returns nothing for them.

    Forward mode (`jvp`, `jacfwd`) through such a function raises RuleError. Cotangents of integer
    outputs are f32 zeros. Values that `fun` captures from outside cannot be differentiated through
    it: pass them as arguments.
    """

    kind = "custom_vjp"

    def __init__(self, fun: Callable[..., Any], nondiff_argnums: int | Sequence[int] = ()) -> None:
        super().__init__(fun, nondiff_argnums)
        self.fwd: Callable[..., Any] | None = None
        self.bwd: Callable[..., Any] | None = None

    def defvjp(self, fwd: Callable[..., Any], bwd: Callable[..., Any]) -> None:
        """Set the rules: ``fwd(*args) -> (output, residuals)``, ``bwd(residuals, ct)``."""
        self.fwd, self.bwd = fwd, bwd

    def _apply(self, args: Sequence[Any], kwargs: Any) -> Any:
        if self.fwd is None or self.bwd is None:
            raise self._missing("defvjp")
        fwd, bwd = self.fwd, self.bwd
        return self._bind(
            custom_vjp_p,
            args,
            kwargs,
            lambda call: _UserVjp(function_name(fwd), fwd, bwd, call, self._merged),
        )


@dataclass(frozen=True)
class _UserVjp(VjpRule):
    fwd: Callable[..., Any]
    bwd: Callable[..., Any]
    call: _Call
    merge: Callable[[Sequence[Any], Sequence[Any]], list[Any]]

    def forward(self, args: Sequence[Any]) -> tuple[list[Any], list[Any], PullBack]:
        call = self.call
        what = f"The rule {self.name} of {call.name}"
        result = self.fwd(*self.merge(call.arguments(args), call.statics))
        if not isinstance(result, tuple | list) or len(result) != 2:
            raise TraceError(message(f"{what} returns no pair", None, "Return (output, residuals)"))
        outs, _ = _output_leaves(what, call, result[0])
        tree.check_leaves(result[1], "residuals", "value")
        residuals, structure = tree.flatten(result[1])
        pull_back = _UserPullBack(
            function_name(self.bwd),
            self.bwd,
            call,
            structure,
            tuple(aval_of(out).strong() for out in outs),
            tuple(aval_of(arg).strong() for arg in args),
        )
        return outs, residuals, pull_back


@dataclass(frozen=True)
class _UserPullBack(PullBack):
    bwd: Callable[..., Any]
    call: _Call
    residual_structure: tree.TreeDef
    out_avals: tuple[Aval, ...]
    avals: tuple[Aval, ...]

    def cotangents(self, residuals: Sequence[Any], cts: Sequence[Any]) -> list[Any]:
        call = self.call
        given = iter(cts)
        full = [
            next(given) if zeros.has_tangent(aval) else zeros.fill(0, _tangent_type(aval))
            for aval in self.out_avals
        ]
        saved = tree.unflatten(self.residual_structure, [_as_array(r) for r in residuals])
        ct = tree.unflatten(call.out_structure, [_as_array(c) for c in full])
        results = self.bwd(*call.statics, saved, ct)
        what = f"The rule {self.name} of {call.name}"
        # Leaves become their own numbers, so that a None of the rule can stand for any subtree.
        wanted = tree.unflatten(call.structure, range(len(self.avals)))
        if not isinstance(results, tuple | list) or len(results) != len(wanted):
            count = f"{len(results)} values" if isinstance(results, tuple | list) else "no tuple"
            raise TraceError(
                message(
                    f"{what} returns {count} for {len(wanted)} arguments",
                    None,
                    "Return a tuple with a cotangent per argument, None for zero",
                )
            )
        found: list[Any] = [None] * len(self.avals)
        for value, places in zip(results, wanted, strict=True):
            self._collect(what, value, places, found)
        return [
            None
            if ct is None or not zeros.has_tangent(aval)
            else _checked_leaf(f"{what} returns a cotangent", path, ct, aval)
            for ct, aval, path in zip(found, self.avals, call.paths, strict=True)
        ]

    def _collect(self, what: str, value: Tree, places: Tree, found: list[Any]) -> None:
        """Put the leaves of a cotangent tree in their places; None leaves a subtree out."""
        if value is None:
            return
        wanted, own = tree.children(places), tree.children(value)
        if wanted is None and own is None:
            found[places] = value
            return
        if wanted is None or own is None or wanted.keys() != own.keys():
            paths = [self.call.paths[i] for i in tree.leaves(places)]
            raise TraceError(
                message(
                    f"{what} returns a cotangent in another structure than its argument "
                    f"({', '.join(paths[:3]) or 'empty'})",
                    None,
                    "Return the containers of the argument, or None for zero",
                )
            )
        for key, part in wanted.items():
            self._collect(what, own[key], part, found)


# ---------------------------------------------------------------- custom_tangent
def _tangent_abstract(
    *operands: Aval,
    rule: Annotation,
    residuals: int,
    flags: tuple[bool, ...],
    avals: tuple[Aval, ...],
) -> tuple[Aval, ...]:
    return avals


_ONE_WAY = "a custom_vjp function gives only its reverse derivative"

custom_tangent_p = Primitive(
    "custom_tangent",
    abstract=_tangent_abstract,
    multiple_results=True,
    doc="The tangents of a custom_vjp call: linear, and known by its transpose only.",
    not_needed={
        "reference": _ONE_WAY,
        "jvp": _ONE_WAY,
        "pad": "derivatives are taken before padding",
        "cost": "it is transposed before costs are taken",
    },
    remedies=dict.fromkeys(("reference", "jvp"), custom_vjp_p.remedies["jvp"]),
)


@custom_tangent_p.def_transpose
def _tangent_transpose(
    cts: Sequence[Any],
    *operands: Any,
    rule: PullBack,
    residuals: int,
    flags: tuple[bool, ...],
    avals: tuple[Aval, ...],
) -> list[Any]:
    saved = operands[:residuals]
    for value in saved:
        if isinstance(value, Linear):
            raise custom_vjp_p.missing_rule("jvp")
    found = rule.cotangents(saved, zeros.instantiate_all(cts))
    return [None] * residuals + [ct for ct, flag in zip(found, flags, strict=True) if flag]


@custom_tangent_p.def_vmap
def _tangent_vmap(
    ctx: Any,
    args: Sequence[Any],
    dims: Sequence[int | None],
    size: Size,
    *,
    rule: PullBack,
    residuals: int,
    flags: tuple[bool, ...],
    avals: tuple[Aval, ...],
) -> tuple[list[Any], list[int]]:
    given = iter(dims[residuals:])
    # Arguments without a tangent have no operand; their cotangents are dropped.
    arg_dims = tuple(next(given) if flag else 0 for flag in flags)
    batched = BatchedPullBack(
        rule.name, rule, ctx.vmap_to_front, tuple(dims[:residuals]), arg_dims, size
    )
    outs = custom_tangent_p.bind(
        *args,
        rule=batched,
        residuals=residuals,
        flags=flags,
        avals=tuple(aval.with_shape((size, *aval.shape)) for aval in avals),
    )
    return outs, [0] * len(outs)
