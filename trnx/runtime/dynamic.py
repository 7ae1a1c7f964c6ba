"""`jit(f, dynamic=...)`: one trace for all sizes, one executable per bucket of sizes.

Dynamic axes become named sizes in the trace. A call reads the sizes from the shapes of its
arguments, finds the family of its program and runs it (:mod:`trnx.runtime.bucketing`). Under grad
and vmap the call stays symbolic, so derivatives are compiled once per bucket too. Inside a traced
function the sizes are those of that trace, and the function is traced for them as any other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trnx.core import config, tree
from trnx.core.avals import Aval, Shape, aval_of
from trnx.core.dims import Dim
from trnx.core.errors import DimError, message, user_traceback
from trnx.core.tracing import EVAL_TRACE, RecordTrace, Trace, current_trace
from trnx.runtime import evaluate
from trnx.runtime.array import Array
from trnx.runtime.bucketing import Family
from trnx.runtime.buckets import Buckets, as_buckets
from trnx.runtime.devices import Device
from trnx.runtime.dynamic_sizes import DynamicAxes, Signature, above_one, every_axis
from trnx.runtime.jit import (
    Call,
    Entry,
    Jitted,
    Ready,
    is_closed,
    rebuild,
    run_ready,
    type_key,
)
from trnx.runtime.sized import sized_program
from trnx.runtime.stages import Lowered
from trnx.runtime.statics import static_key
from trnx.transforms.arguments import argument_names
from trnx.transforms.inline import call, with_sizes

_READY_LIMIT = 4096  # combinations of exact types whose way to run is remembered


@dataclass(slots=True)
class DynamicEntry:
    """What a dynamic function knows for one key.

    Attributes:
        entry: the traced program and what belongs to it.
        signature: how the named sizes follow from the shapes of the leaves.
        families: executables by device kind and target.
    """

    entry: Entry
    signature: Signature
    families: dict[tuple[str, str], Family] = field(default_factory=dict)

    def family(self, device: Device, buckets: Buckets, title: str, sized: bool = False) -> Family:
        """The executables for a device; `sized` asks for one that serves every size."""
        place = (device.kind, device.target)
        found = self.families.get(place)
        if found is None:
            entry = self.entry
            one = sized_program(entry.program, device, entry.donated) if sized else None
            found = Family(entry.program, buckets, device, entry.donated, "jit", title, one)
            self.families[place] = found
        return found


class DynamicJitted(Jitted):
    """A function under ``jit(f, dynamic=...)``.

    Args:
        function: see :func:`trnx.runtime.jit.jit`, as for all other arguments.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        static_argnums: int | Sequence[int] = (),
        static_argnames: str | Sequence[str] = (),
        donate_argnums: int | Sequence[int] = (),
        *,
        dynamic: Mapping[str | int, Any] | bool = True,
        buckets: Any = None,
        target: str | None = None,
    ) -> None:
        super().__init__(function, static_argnums, static_argnames, donate_argnums)
        if dynamic is not True and not isinstance(dynamic, Mapping):
            raise TypeError(
                message(
                    f"jit of {self.name} got dynamic={dynamic!r}",
                    None,
                    'Use True, or a mapping such as {"x": {0: "n"}}',
                )
            )
        self._buckets = as_buckets(buckets)
        if target not in (None, "host"):
            raise ValueError(
                message(f"jit got target={target!r}", None, 'Use "host", or leave it out')
            )
        self._sized = target == "host"
        self._axes = DynamicAxes(dynamic, self.name) if isinstance(dynamic, Mapping) else None
        self._exact = Jitted(function, static_argnums, static_argnames, donate_argnums)
        self._dynamic: dict[Any, list[DynamicEntry]] = {}

    # ---- calls
    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if config.disable_jit.value:
            return self.function(*args, **kwargs)
        taken = self._take_apart(args, kwargs)
        leaves = taken.leaves
        trace = current_trace.get()
        if trace is not EVAL_TRACE and (_is_recorded(trace) or not all(map(_is_static, leaves))):
            return self._exact._call(args, kwargs)
        typed = tuple([(name, static_key(value)) for name, value in taken.statics])
        types = [x._type if type(x) is Array else type_key(x) for x in leaves]
        key = (taken.structure, typed, *types)
        ready = self._ready.get(key)
        if ready is not None and self._may_run(ready):
            return run_ready(ready, leaves)
        found, sizes = self._find((taken.structure, typed), taken, args, kwargs)
        entry = found.entry
        if trace is not EVAL_TRACE:
            values = tuple(sorted(sizes.items()))
            return rebuild(entry, call(entry.program, leaves, values, self._buckets))
        device = evaluate.common_device(leaves)
        arrays = [evaluate.as_array(leaf, device) for leaf in leaves]
        title = f"{self.name} ({self._place()})"
        plan = found.family(device, self._buckets, title, self._sized).plan(sizes)
        if config.debug_nans.value:
            results = plan(arrays)
            if evaluate.any_nan(results):
                exact = with_sizes(entry.program, tuple(sorted(sizes.items())))
                evaluate.find_nan(exact, arrays, results)
            return rebuild(entry, results)
        self._remember(key, Ready(entry, plan, device.target, True), leaves, args, kwargs)
        return rebuild(entry, plan(arrays, (), entry.donated))

    def _remember(
        self,
        key: Any,
        record: Ready,
        leaves: Sequence[Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        """Keep the way to run, so that the next call of these types finds it at once."""
        made = [type(leaf) is Array for leaf in leaves]
        if not any(made):  # without an array the device follows the default, which may change
            return
        if len(self._ready) >= _READY_LIMIT:
            self._ready.clear()
        record = Ready(record.entry, record.executable, record.target, all(made))
        self._ready[key] = record
        if self._simple and not kwargs and all(type(x) is Array for x in args):
            self._ready[tuple([x._type for x in args])] = record

    # ---- finding and tracing
    def _find(
        self, head: tuple[Any, ...], taken: Call, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[DynamicEntry, dict[str, int]]:
        """The traced program for a call and the values of its sizes; traced when there is none.

        Raises:
            DimError: declared sizes do not agree or are out of bounds.
        """
        for name, value in zip(self._paths(args, kwargs), taken.leaves, strict=True):
            tree.check_leaves(value, name)
        avals = [aval_of(leaf) for leaf in taken.leaves]
        shapes: list[Any] = [aval.shape for aval in avals]
        patterns = self._patterns(avals, args, kwargs)
        key = (*head, *map(_mask, avals, patterns))
        known = self._dynamic.get(key, [])
        problem = ""
        for found in reversed(known):  # the latest holds for more sizes than those before it
            sizes: dict[str, int] = {}
            problem = found.signature.problem(shapes, sizes)
            if not problem:
                return found, sizes
        if problem and self._axes is not None:
            raise DimError(message(f"{self.name}: {problem}", None, _AGREE))
        made, sizes = self._traced(args, kwargs, taken, patterns)
        earlier = [entry.entry.key for entries in self._dynamic.values() for entry in entries]
        self._report_miss(made.entry, earlier)
        if is_closed(made.entry.program):
            self._dynamic.setdefault(key, []).append(made)
        return made, sizes

    def _patterns(
        self, avals: Sequence[Aval], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> list[Shape]:
        """Symbolic shape of each leaf."""
        paths = self._paths(args, kwargs)
        shapes: list[Any] = [aval.shape for aval in avals]
        if self._axes is None:
            return every_axis(paths, shapes)
        return self._axes.shapes(paths, shapes, argument_names(self.function, args, {}))

    def _traced(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        taken: Call,
        patterns: Sequence[Shape],
    ) -> tuple[DynamicEntry, dict[str, int]]:
        """Trace for symbolic shapes.

        With ``dynamic=True`` nobody gave bounds, so sizes start at 0. A function that needs more (a
        last element, broadcasting of an axis of size 1) is traced once more with sizes 0 and 1
        fixed and all others above 1.
        """
        actual: list[Any] = [aval_of(leaf).shape for leaf in taken.leaves]
        try:
            return self._traced_for(args, kwargs, taken, patterns, actual)
        except DimError:
            narrowed = above_one(patterns, actual) if self._axes is None else None
            if narrowed is None or not any(map(len, narrowed)):
                raise
        return self._traced_for(args, kwargs, taken, narrowed, actual)

    def _traced_for(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        taken: Call,
        shapes: Sequence[Shape],
        actual: Sequence[Any],
    ) -> tuple[DynamicEntry, dict[str, int]]:
        paths = self._paths(args, kwargs)
        signature = Signature(shapes, paths)
        sizes: dict[str, int] = {}
        problem = signature.problem(actual, sizes)
        if problem:
            raise DimError(message(f"{self.name}: {problem}", None, _AGREE))
        avals = [
            aval_of(leaf).with_shape(shape)
            for leaf, shape in zip(taken.leaves, shapes, strict=True)
        ]
        entry = self._record(args, kwargs, taken, paths, avals)
        return DynamicEntry(entry, signature), sizes

    def trace(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Entry:
        """Trace the function for symbolic sizes, whatever is known already."""
        taken = self._take_apart(args, kwargs)
        patterns = self._patterns([aval_of(leaf) for leaf in taken.leaves], args, kwargs)
        return self._traced(args, kwargs, taken, patterns)[0].entry

    @user_traceback
    def lower(self, *args: Any, **kwargs: Any) -> Lowered:
        """Give what the compiler makes of the padded program of the bucket for these arguments.

        It takes the padded arrays and then the true sizes, see :func:`trnx.transforms.pad_program`.
        """
        taken = self._take_apart(args, kwargs)
        typed = tuple([(name, static_key(value)) for name, value in taken.statics])
        found, sizes = self._find((taken.structure, typed), taken, args, kwargs)
        device = evaluate.common_device(taken.leaves)
        family = found.family(device, self._buckets, self.name, self._sized)
        arrays = [evaluate.as_array(leaf, device) for leaf in taken.leaves]
        return Lowered(
            family.padded(sizes).program,
            device,
            found.entry.donated,
            family.buffers(sizes, arrays),
            lambda: family.member(sizes),
        )

    def entries(self) -> tuple[Entry, ...]:
        """What was traced so far, oldest first."""
        return tuple(entry.entry for entries in self._dynamic.values() for entry in entries)

    def clear_cache(self) -> None:
        """Forget every traced program and its executables."""
        super().clear_cache()
        self._exact.clear_cache()
        self._dynamic.clear()

    def __repr__(self) -> str:
        return f"<dynamic jit of {self.name}: {len(self.entries())} traced>"


_AGREE = "Pass arrays whose sizes agree and are within the bounds"


def _mask(aval: Aval, pattern: Shape) -> tuple[Any, ...]:
    """The part of a type that a dynamic function is traced for; dynamic sizes become None."""
    sizes = [None if isinstance(size, Dim) else size for size in pattern]
    return (aval.dtype, aval.weak, *sizes)


def _is_static(leaf: Any) -> bool:
    return aval_of(leaf).is_static


def _is_recorded(trace: Trace | None) -> bool:
    """True when the call becomes part of a program that is being traced."""
    while trace is not None:
        if isinstance(trace, RecordTrace):
            return True
        trace = trace.parent
    return False
