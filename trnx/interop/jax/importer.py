"""from_jax: a JAX function becomes a Program by walking its jaxpr.

JAX traces the function on shapes and dtypes. Each equation runs its rule of `registry.RULES` on
traced values, under the user's line that JAX recorded, so errors, tile instructions and timelines
point at the user's JAX code.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.extend.core
import numpy as np
from jax._src import source_info_util

from trnx.core import (
    Aval,
    DTypeError,
    Program,
    Source,
    UnsupportedError,
    aval_of,
    dtypes,
    message,
    trace_program,
    tree,
    use_source,
    user_traceback,
)
from trnx.core.source import UNKNOWN_SOURCE
from trnx.interop.jax.registry import RULES, Site
from trnx.ops import functions as op
from trnx.transforms import call
from trnx.transforms.arguments import argument_names, function_name

KEY_WORDS = 2
"""uint32 words of a key of the one generator that trnx has, Threefry-2x32."""


def from_jax(function: Callable[..., Any]) -> Callable[..., Any]:
    """A trnx function that computes what a JAX function computes.

    The function is traced by JAX once per structure, shapes and dtypes of the arguments, and runs
    as trnx kernels. It composes with `trnx.jit`, `grad`, `vmap` and the rest; derivative rules of
    `jax.custom_jvp`, `jax.custom_vjp` and `jax.checkpoint` are kept. ::

        loss = from_jax(jax_loss)
        gradient = trnx.jit(trnx.grad(loss))(params, x)

    Args:
        function: a function of trees of arrays that `jax.make_jaxpr` can trace. Arrays it closes
            over become constants. A key of `jax.random.key` is a uint32 array with two words in
            the last axis here.

    Returns:
        A function of the same arguments; trnx arrays, NumPy arrays and numbers are taken, trnx
        arrays are returned in the structure that `function` returns.

    Raises:
        UnsupportedError: (when called) a primitive has no rule, or a rule does not cover its
            parameters; names the primitive and the line of the JAX code. A size is symbolic.
        DTypeError: (when called) an argument has 64-bit elements while JAX is set to 32 bits.
    """
    name = function_name(function)
    known: dict[Any, tuple[Program, Any]] = {}

    @functools.wraps(function)
    @user_traceback
    def converted(*args: Any, **kwargs: Any) -> Any:
        names = argument_names(function, args, kwargs)
        paths: list[str] = []
        for value, root in zip((*args, *kwargs.values()), names, strict=True):
            tree.check_leaves(value, root)
            paths += tree.paths(value, root)
        leaves, structure = tree.flatten((args, kwargs))
        avals = tuple(aval_of(leaf) for leaf in leaves)
        key = (structure, avals, bool(jax.config.jax_enable_x64))
        found = known.get(key)
        if found is None:
            found = known[key] = _import(function, name, structure, avals, paths)
        program, out_structure = found
        return jax.tree.unflatten(out_structure, call(program, leaves))

    return converted


def import_jaxpr(closed: Any, name: str, avals: Sequence[Aval]) -> Program:
    """The Program of a closed jaxpr for operands of these types."""
    return trace_program(lambda *args: run_jaxpr(closed, args), avals, name)


def _import(
    function: Callable[..., Any],
    name: str,
    structure: tree.TreeDef,
    avals: Sequence[Aval],
    paths: Sequence[str],
) -> tuple[Program, Any]:
    """The Program of a JAX function and the structure of its result, as JAX sees it."""
    shapes = [_shape_struct(aval, path) for aval, path in zip(avals, paths, strict=True)]
    args, kwargs = tree.unflatten(structure, shapes)
    closed, results = jax.make_jaxpr(function, return_shape=True)(*args, **kwargs)
    return import_jaxpr(closed, name, avals), jax.tree.structure(results)


def _shape_struct(aval: Aval, path: str) -> Any:
    if not all(isinstance(size, int) for size in aval.shape):
        raise UnsupportedError(
            message(
                f"Argument {path} of a JAX function has type {aval}, and JAX traces static sizes",
                None,
                "Call from_jax functions with static sizes, outside of dynamic functions",
            )
        )
    if aval.dtype.itemsize > 4 and aval.dtype != dtypes.complex64:
        wide = dtypes.is_complex(aval.dtype) or aval.dtype.itemsize == 8
        if wide and not jax.config.jax_enable_x64:
            raise DTypeError(
                message(
                    f"Argument {path} has type {aval}, and JAX is set to 32 bits",
                    None,
                    "Call jax.config.update('jax_enable_x64', True), or cast the argument",
                )
            )
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak)


# ---------------------------------------------------------------- evaluation
@dataclass(slots=True)
class _Values:
    """Values of a jaxpr's variables."""

    of: dict[Any, Any]

    def read(self, atom: Any) -> Any:
        if isinstance(atom, jax.extend.core.Literal):
            return _constant(atom.val, to_aval(atom.aval))
        return self.of[atom]


def run_jaxpr(closed: Any, args: Sequence[Any], outer: Source = UNKNOWN_SOURCE) -> list[Any]:
    """Evaluate a closed jaxpr on trnx values under the current trace.

    Args:
        closed: a `ClosedJaxpr`.
        args: one value per input.
        outer: the line that stands for equations of which JAX kept none, such as those of its own
            library functions.

    Raises:
        UnsupportedError: a primitive has no rule; names it and the user's line.
    """
    jaxpr = closed.jaxpr
    values = _Values({})
    for var, value in zip(jaxpr.constvars, closed.consts, strict=True):
        values.of[var] = _constant(value, to_aval(var.aval))
    values.of.update(zip(jaxpr.invars, args, strict=True))
    for equation in jaxpr.eqns:
        source = source_of(equation, outer)
        with use_source(source) if source.file else contextlib.nullcontext():
            results = _apply(equation, [values.read(a) for a in equation.invars], source)
        values.of.update(zip(equation.outvars, results, strict=True))
    return [values.read(atom) for atom in jaxpr.outvars]


def _apply(equation: Any, operands: Sequence[Any], source: Source) -> list[Any]:
    name = equation.primitive.name
    rule = RULES.get(name)
    if rule is None:
        raise UnsupportedError(
            message(
                f"from_jax has no rule for the JAX primitive {name}",
                source,
                "Write the operation with others, or enter a rule with "
                "trnx.interop.jax.registry.rule",
            )
        )
    site = Site(
        name,
        tuple(to_aval(atom.aval) for atom in equation.invars),
        tuple(to_aval(var.aval) for var in equation.outvars),
        source,
        functools.partial(run_jaxpr, outer=source),
    )
    params = {key: _plain(value) for key, value in equation.params.items()}
    if not name.startswith("random_") and any(map(_is_key, equation.invars)):
        found: Any = _by_words(site, rule, equation, operands, params)
    else:
        found = rule(site, *operands, **params)
    results = list(found) if isinstance(found, list | tuple) else [found]
    # A rule answers for types too: a result of another type would fail far from its cause.
    for result, aval in zip(results, site.results, strict=True):
        got = aval_of(result)
        if got.shape != aval.shape or got.dtype != aval.dtype:
            raise AssertionError(f"The rule of {name} gives {got} for {aval}")
    return results


_WITH_BODY = ("jit", "pjit", "closed_call", "core_closed_call", "scan", "while", "cond")


def _is_key(atom: Any) -> bool:
    dtype = getattr(atom.aval, "dtype", None)
    return dtype is not None and jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key)


def _plain(value: Any) -> Any:
    """A parameter with Python integers for NumPy's, which trnx takes for arrays."""
    if isinstance(value, np.integer):
        return int(value)
    if type(value) in (tuple, list):
        return tuple(map(_plain, value))
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(_plain, value))
    return value


def _by_words(
    site: Site, rule: Any, equation: Any, operands: Sequence[Any], params: dict[str, Any]
) -> list[Any]:
    """A primitive that moves keys, on the first and the second words of them."""
    if site.primitive in _WITH_BODY:
        found = rule(site, *operands, **params)
        return list(found)

    def halved(atoms: Sequence[Any], avals: Sequence[Aval]) -> tuple[Aval, ...]:
        return tuple(
            a.with_shape(a.shape[:-1]) if _is_key(atom) else a
            for atom, a in zip(atoms, avals, strict=True)
        )

    inner = dataclasses.replace(
        site,
        operands=halved(equation.invars, site.operands),
        results=halved(equation.outvars, site.results),
    )
    words: list[list[Any]] = []
    for word in range(KEY_WORDS):
        given = [
            _word(x, word) if _is_key(atom) else x
            for x, atom in zip(operands, equation.invars, strict=True)
        ]
        found = rule(inner, *given, **params)
        words.append(list(found) if isinstance(found, list | tuple) else [found])
    return [
        op.concatenate([op.expand(x, len(a.shape)) for x in pair], len(a.shape))
        for pair, a in zip(zip(*words, strict=True), inner.results, strict=True)
    ]


def _word(keys: Any, word: int) -> Any:
    shape = op.shape_of(keys)
    last = len(shape) - 1
    return op.reshape(op.slice_axis(keys, word, word + 1, last), shape[:-1])


def to_aval(aval: Any) -> Aval:
    """The trnx type of a JAX type.

    Raises:
        UnsupportedError: the dtype is none of trnx's, or the value is no array.
    """
    dtype = getattr(aval, "dtype", None)
    if dtype is not None and jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key):
        if str(dtype) != "key<fry>":
            raise UnsupportedError(
                message(
                    f"Random keys of type {dtype} belong to a generator trnx does not have",
                    None,
                    "Make keys with jax.random.key(seed, impl='threefry2x32')",
                )
            )
        return Aval((*aval.shape, KEY_WORDS), dtypes.uint32)
    if dtype is None or np.dtype(dtype) not in dtypes.ALL_DTYPES:
        raise UnsupportedError(
            message(
                f"JAX values of type {aval} have no type in trnx",
                None,
                "Convert to one of " + ", ".join(map(dtypes.short_name, dtypes.ALL_DTYPES)),
            )
        )
    return Aval(tuple(aval.shape), np.dtype(dtype))


def _constant(value: Any, aval: Aval) -> Any:
    """A constant of a jaxpr as a NumPy array or scalar of the type."""
    if jax.dtypes.issubdtype(getattr(value, "dtype", None), jax.dtypes.prng_key):
        value = jax.random.key_data(value)
    array = np.asarray(value, aval.dtype)
    return op.scalar(array[()], aval.dtype) if not aval.shape else array


def source_of(equation: Any, outer: Source = UNKNOWN_SOURCE) -> Source:
    """The line of the JAX code that made an equation; `outer` when JAX kept none."""
    frame = source_info_util.user_frame(equation.source_info.traceback)
    if frame is None:
        return outer
    stack = str(equation.source_info.name_stack)
    return Source(frame.file_name, frame.start_line, frame.function_name, stack)
