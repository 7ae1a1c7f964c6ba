"""`jit`: functions of trees of arrays that run as one executable per key.

A key is (tree structure, types of the leaves, static values). Python numbers are traced inputs of
weak type, so that a changed number compiles nothing. Inside another trace a jitted function binds
a `call` of its program, which the transform rewrites as a whole.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MethodType
from typing import Any

from trnx.core import config, tree
from trnx.core.avals import Aval, aval_of
from trnx.core.dims import Dim
from trnx.core.errors import (
    ArgumentError,
    TraceError,
    hide_internal_frames,
    message,
    user_traceback,
)
from trnx.core.program import Program, prune
from trnx.core.source import UNKNOWN_SOURCE, Source, current_source
from trnx.core.tracing import EVAL_TRACE, Tracer, current_trace, trace_program
from trnx.ops import functions
from trnx.runtime import evaluate, explain
from trnx.runtime.array import Array, hold
from trnx.runtime.bucketing import Plan
from trnx.runtime.devices import Device
from trnx.runtime.executable import Executable
from trnx.runtime.programs import executable_for
from trnx.runtime.sized import SizedPlan
from trnx.runtime.stages import Lowered
from trnx.runtime.statics import static_key
from trnx.transforms.arguments import (
    argument_names,
    argument_positions,
    check_function,
    function_name,
)
from trnx.transforms.inline import call


@dataclass(slots=True)
class Entry:
    """What a jitted function knows for one key.

    Attributes:
        program: the traced program.
        out_tree: structure of the result; None stands for a single array.
        key: the call it was traced for, in words.
        donated: positions of donated leaves.
        executables: by device kind and target.
    """

    program: Program
    out_tree: tree.TreeDef | None
    key: explain.CallKey
    donated: tuple[int, ...]
    executables: dict[tuple[str, str], Executable] = field(default_factory=dict)

    def device(self, leaves: Sequence[Any]) -> Device:
        """Where a call runs: the one device of its arguments and of the captured arrays."""
        return evaluate.common_device([*leaves, *self.program.constant_values])

    def executable(self, device: Device) -> Executable:
        """The executable for a device, compiled when there is none yet."""
        place = (device.kind, device.target)
        found = self.executables.get(place)
        if found is None:
            found = executable_for(self.program, device, self.donated)
            self.executables[place] = found
        return found


@dataclass(frozen=True, slots=True)
class Call:
    """Arguments taken apart."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    statics: tuple[tuple[str, Any], ...]
    leaves: list[Any]
    structure: tree.TreeDef


@dataclass(frozen=True, slots=True)
class Ready:
    """What a call with known types needs: found by the types of its leaves, devices included.

    `only_arrays` is False when some leaves are Python numbers or NumPy arrays, which become
    arrays first.
    """

    entry: Entry
    executable: Executable | Plan | SizedPlan
    target: str
    only_arrays: bool


class Jitted:
    """A function under :func:`jit`.

    Calling it traces on a new key, compiles on a new program and otherwise only runs.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        static_argnums: int | Sequence[int] = (),
        static_argnames: str | Sequence[str] = (),
        donate_argnums: int | Sequence[int] = (),
    ) -> None:
        check_function("jit", function)
        functools.update_wrapper(self, function)
        self.function = function
        self.name = function_name(function)
        positions = _parameters(function)
        nums = _positions("static_argnums", static_argnums, function, positions)
        names = _names(static_argnames, function)
        # A static parameter is static however it is passed.
        nums |= {positions.index(name) for name in names if name in positions}
        names |= {positions[n] for n in nums if n < len(positions)}
        self._static_nums = frozenset(nums)
        self._static_names = frozenset(names)
        self._donated_nums = frozenset(
            _positions("donate_argnums", donate_argnums, function, positions)
        )
        both = sorted(self._static_nums & self._donated_nums)
        if both:
            raise ValueError(
                message(
                    f"Argument {both[0]} of {self.name} is static and donated",
                    None,
                    "Donate only arrays",
                )
            )
        self._entries: dict[Any, Entry] = {}
        self._ready: dict[Any, Ready] = {}
        self._simple = not (nums or names)

    # ---- calls
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the function as one executable, or bind it as a `call` inside another trace."""
        try:
            if self._simple and not kwargs:
                try:
                    ready = self._ready.get(tuple([x._type for x in args]))
                except AttributeError:  # not an array: a container, a number or a traced value
                    ready = None
                if ready is not None and self._may_run(ready):
                    return run_ready(ready, args)
            return self._call(args, kwargs)
        except Exception as error:
            hide_internal_frames(error)
            raise

    def _may_run(self, ready: Ready) -> bool:
        """True unless an option or a trace asks for something else than running the executable."""
        return (
            current_trace.get() is EVAL_TRACE
            and ready.target == ready.executable.device.target
            and not config.disable_jit.value
            and not config.debug_nans.value
        )

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if config.disable_jit.value:
            return self.function(*args, **kwargs)
        if self._simple:
            leaves, structure = tree.flatten((args, kwargs))
            typed: tuple[Any, ...] = ()
        else:
            taken = self._take_apart(args, kwargs)
            leaves, structure = taken.leaves, taken.structure
            typed = tuple([(name, static_key(value)) for name, value in taken.statics])
        key = (structure, typed, *[x._type if type(x) is Array else type_key(x) for x in leaves])
        ready = self._ready.get(key)
        if ready is not None and self._may_run(ready):
            return run_ready(ready, leaves)
        general = (structure, typed, *[aval_key(x) for x in leaves])
        entry = self._entries.get(general)
        if entry is None:
            entry = self._trace(general, args, kwargs)
        if current_trace.get() is not EVAL_TRACE:
            return rebuild(entry, call(entry.program, leaves))
        device = entry.device(leaves)
        arrays = [evaluate.as_array(leaf, device) for leaf in leaves]
        executable = entry.executable(device)
        if config.debug_nans.value:
            results = executable(arrays)
            if evaluate.any_nan(results):
                evaluate.find_nan(entry.program, arrays, results)
            return rebuild(entry, results)
        made = [type(leaf) is Array for leaf in leaves]
        if any(made):  # without an array the device follows the default, which may change
            record = Ready(entry, executable, device.target, all(made))
            self._ready[key] = record
            if self._simple and not kwargs and all(type(x) is Array for x in args):
                self._ready[tuple([x._type for x in args])] = record
        return rebuild(entry, executable(arrays, (), entry.donated))

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else MethodType(self, instance)

    def __repr__(self) -> str:
        return f"<jit of {self.name}: {len(self._entries)} traced>"

    # ---- arguments
    def _take_apart(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        """Separate static values from trees of arrays."""
        statics: list[tuple[str, Any]] = []
        names: list[str] | None = None
        dynamic: list[Any] = []
        for index, value in enumerate(args):
            if index in self._static_nums:
                if names is None:
                    names = argument_names(self.function, args, {})
                statics.append((names[index], value))
            else:
                dynamic.append(value)
        others = {}
        for name, value in kwargs.items():
            if name in self._static_names:
                statics.append((name, value))
            else:
                others[name] = value
        for name, value in statics:
            self._check_static(name, value)
        leaves, structure = tree.flatten((tuple(dynamic), others))
        return Call(tuple(dynamic), others, tuple(sorted(statics, key=_first)), leaves, structure)

    def _check_static(self, name: str, value: Any) -> None:
        try:
            hash(value)
        except TypeError:
            kind = type(value)
            if isinstance(value, Tracer | Array):
                remedy = "Leave it out of static_argnums, it is an array"
            else:
                remedy = "Pass a hashable value (a tuple for a list, a dataclass with frozen=True)"
            raise TraceError(
                message(
                    f"Static argument {name} of {self.name} is not hashable: it has type "
                    f"{kind.__module__}.{kind.__qualname__}",
                    None,
                    remedy,
                )
            ) from None

    def _paths(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[str]:
        """Text of the way to each leaf of the arguments that are not static."""
        names = argument_names(self.function, args, kwargs)
        paths: list[str] = []
        for index, value in enumerate(args):
            if index not in self._static_nums:
                paths += tree.paths(value, names[index])
        for name in sorted(kwargs):
            if name not in self._static_names:
                paths += tree.paths(kwargs[name], name)
        return paths

    def _donated_leaves(self, args: tuple[Any, ...]) -> tuple[int, ...]:
        """Positions of the leaves that belong to donated arguments."""
        positions: list[int] = []
        start = 0
        for index, value in enumerate(args):
            if index in self._static_nums:
                continue
            count = len(tree.leaves(value))
            if index in self._donated_nums:
                positions += range(start, start + count)
            start += count
        return tuple(positions)

    # ---- tracing
    def _trace(self, key: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Entry:
        """Trace the function for a new key, and keep the result unless it holds traced values."""
        entry = self.trace(args, kwargs)
        self._report_miss(entry, [known.key for known in self._entries.values()])
        if is_closed(entry.program):
            self._entries[key] = entry
        return entry

    def _report_miss(self, entry: Entry, earlier: Sequence[explain.CallKey]) -> None:
        """Say why a call was traced, if somebody wants to know."""
        if explain.wanted():
            reasons = explain.reasons(entry.key, earlier)
            explain.report(
                explain.Miss(self.name, self._place(), current_source(), reasons, len(earlier))
            )

    def _place(self) -> str:
        """`file:line` of the function's definition."""
        where = getattr(self.function, "__code__", None)
        if where is None:
            return UNKNOWN_SOURCE.location
        return Source(where.co_filename, where.co_firstlineno, "").location

    def trace(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Entry:
        """Trace the function for these arguments, whatever is known already."""
        taken = self._take_apart(args, kwargs)
        paths = self._paths(args, kwargs)
        for name, value in zip(paths, taken.leaves, strict=True):
            tree.check_leaves(value, name)
        return self._record(args, kwargs, taken, paths, [aval_of(leaf) for leaf in taken.leaves])

    def _record(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        taken: Call,
        paths: Sequence[str],
        avals: Sequence[Aval],
    ) -> Entry:
        """Trace the function for leaves of these types."""
        statics = dict(taken.statics)
        out_tree: tree.TreeDef | None = None

        def flat(*tracers: Any) -> Sequence[Any]:
            nonlocal out_tree
            dynamic, others = tree.unflatten(taken.structure, tracers)
            full = list(dynamic)
            for index in sorted(self._static_nums):
                if index < len(args):
                    full.insert(index, args[index])
            others.update({name: kwargs[name] for name in kwargs if name in statics})
            result = self.function(*full, **others)
            if any(isinstance(leaf, Dim) for leaf in tree.leaves(result)):  # a size is a number
                result = tree.map(_size_as_array, result)
            tree.check_leaves(result, "output", "value")
            outputs, out_tree = tree.flatten(result)
            return outputs

        program = _holding(prune(trace_program(flat, avals, self.name, paths)))
        if out_tree is not None and tree.structure(0) == out_tree:
            out_tree = None
        key = explain.CallKey(tuple(paths), tuple(avals), str(taken.structure), taken.statics)
        return Entry(program, out_tree, key, self._donated_leaves(args))

    @user_traceback
    def lower(self, *args: Any, **kwargs: Any) -> Lowered:
        """Trace for these arguments and give what the compiler makes of it, pass by pass."""
        entry = self.trace(args, kwargs)
        leaves = self._take_apart(args, kwargs).leaves
        device = entry.device(leaves)
        return Lowered(
            entry.program, device, entry.donated, leaves, lambda: entry.executable(device)
        )

    def entries(self) -> tuple[Entry, ...]:
        """What was traced so far, oldest first."""
        return tuple(self._entries.values())

    def clear_cache(self) -> None:
        """Forget every traced program and its executables."""
        self._entries.clear()
        self._ready.clear()


def run_ready(ready: Ready, leaves: Sequence[Any]) -> Any:
    executable, entry = ready.executable, ready.entry
    if not ready.only_arrays:
        device = executable.device
        leaves = [x if type(x) is Array else evaluate.as_array(x, device) for x in leaves]
    results = executable(leaves, (), entry.donated)
    if entry.out_tree is None:
        return results[0]
    return tree.unflatten(entry.out_tree, results)


def rebuild(entry: Entry, results: Sequence[Any]) -> Any:
    return results[0] if entry.out_tree is None else tree.unflatten(entry.out_tree, results)


def type_key(leaf: Any) -> Any:
    """Part of the key for a leaf that is no Array; a Python number counts by its Python type."""
    return type(leaf) if type(leaf) in (bool, int, float, complex) else aval_key(leaf)


def aval_key(leaf: Any) -> Any:
    try:
        return aval_of(leaf)
    except TypeError:  # no array: tracing names the argument
        return type(leaf)


def _size_as_array(leaf: Any) -> Any:
    return functions.dim_size(leaf) if isinstance(leaf, Dim) else leaf


def is_closed(program: Program) -> bool:
    """True when the program captured no traced value, so that it can serve later calls."""
    return not any(isinstance(value, Tracer) for value in program.constant_values)


def _holding(program: Program) -> Program:
    """The program with its own handles on the arrays it captured, which may be donated later."""
    if not program.constants:
        return program
    held = [(v, hold(x) if type(x) is Array else x) for v, x in program.constants]
    return replace(program, constants=tuple(held))


def _first(pair: tuple[str, Any]) -> str:
    return pair[0]


def _signature(function: Callable[..., Any]) -> inspect.Signature | None:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):  # a builtin without a signature
        return None


def _parameters(function: Callable[..., Any]) -> list[str]:
    """Names of the positional parameters."""
    signature = _signature(function)
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = () if signature is None else signature.parameters.values()
    return [p.name for p in parameters if p.kind in kinds]


def _positions(
    what: str, value: Any, function: Callable[..., Any], parameters: Sequence[str]
) -> set[int]:
    """Argument positions; negative ones count from the end of the parameters."""
    found: set[int] = set()
    for number in argument_positions("jit", what, value):
        place = number if number >= 0 else len(parameters) + number
        if place < 0 or (place >= len(parameters) and not _takes_more(function, "VAR_POSITIONAL")):
            raise ArgumentError(
                message(
                    f"jit got {what} {number}, but {function_name(function)} takes "
                    f"{len(parameters)} positional arguments",
                    None,
                    "Name a position it has",
                )
            )
        found.add(place)
    return found


def _names(value: str | Sequence[str], function: Callable[..., Any]) -> set[str]:
    """Names of static arguments."""
    names = {value} if isinstance(value, str) else set(value)
    signature = _signature(function)
    for name in sorted(map(str, names)):
        known = signature is None or name in signature.parameters
        if not known and not _takes_more(function, "VAR_KEYWORD"):
            raise ArgumentError(
                message(
                    f"jit got static_argnames {name!r}, which is no argument of "
                    f"{function_name(function)}",
                    None,
                    "Name an argument it has",
                )
            )
    return names


def _takes_more(function: Callable[..., Any], kind: str) -> bool:
    """Whether a function takes ``*args`` or ``**kwargs``, or does not say what it takes."""
    signature = _signature(function)
    return signature is None or any(p.kind.name == kind for p in signature.parameters.values())


def make_ir(function: Callable[..., Any]) -> Callable[..., Program]:
    """A function that gives the traced program instead of running it.

    ``make_ir(f)(x)`` shows what `f` records for arguments like `x`; under `jit`, static arguments
    and all, ``jit(f).lower(x)`` gives the same program and what the compiler makes of it.
    """
    jitted = function if isinstance(function, Jitted) else Jitted(function)

    @functools.wraps(function)
    def traced(*args: Any, **kwargs: Any) -> Program:
        return jitted.trace(args, kwargs).program

    return user_traceback(traced)


def jit(
    function: Callable[..., Any] | None = None,
    *,
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Sequence[str] = (),
    donate_argnums: int | Sequence[int] = (),
    dynamic: Mapping[str | int, Any] | bool | None = None,
    buckets: Any = None,
    target: str | None = None,
) -> Any:
    """Compile a function of arrays into one executable per key.

    Args:
        function: takes and returns trees (tuples, lists, dicts, registered classes) of arrays and
            numbers. Without it `jit(...)` is a decorator.
        static_argnums: positions of arguments that are Python values; each must be hashable, and
            a new value (by equality) is traced anew.
        static_argnames: the same by name.
        donate_argnums: positions of arguments whose memory the call may take for its results; their
            arrays cannot be used afterwards.
        dynamic: sizes that change from call to call. The function is traced once for all of them
            and compiled once per bucket. A mapping from an argument (its name, its position, or a
            path such as ``"batch.x"``) to its dynamic axes: ``{0: "n"}``, ``{0: dim("n", 1, 64)}``
            or ``{0: 2 * dim("n")}``; a name or Dim alone stands for axis 0. Equal names are equal
            sizes. True makes every axis of every array dynamic; axes of equal size at the call
            that traces must then stay equal, or the function is traced again without that.
        buckets: what sizes are padded to: ``powers_of_two()`` (the default), ``multiples(128)``, a
            list of sizes, or a mapping from size name to one of these.
        target: with `dynamic`: None runs what Trainium would run, one executable per bucket; "host"
            runs one executable over run-time sizes where every operation has such a kernel
            (nothing is padded then), and buckets where not.

    Returns:
        A :class:`Jitted` with the signature of `function`.

    Raises:
        TypeError: `function` cannot be called.
        TraceError: at a call: a static argument is not hashable, or the function needs the value
            of a traced array.
        DimError: at a call: sizes of one name differ or are out of bounds, or the function
            branches on a comparison of sizes that their bounds do not decide.
    """
    kind: Callable[..., Jitted] = Jitted
    if dynamic is not None and dynamic is not False:
        from trnx.runtime.dynamic import DynamicJitted

        kind = functools.partial(DynamicJitted, dynamic=dynamic, buckets=buckets, target=target)
    elif buckets is not None or target is not None:
        given_name = "target" if buckets is None else "buckets"
        raise ValueError(
            message(f"jit got {given_name} but no dynamic sizes", None, "Pass dynamic=True as well")
        )
    given = functools.partial(
        kind,
        static_argnums=static_argnums,
        static_argnames=static_argnames,
        donate_argnums=donate_argnums,
    )
    return given if function is None else given(function)
