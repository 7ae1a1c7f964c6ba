"""Why a call of a jitted function was traced and compiled again, in the user's terms."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from trnx.core import config
from trnx.core.avals import Aval
from trnx.core.source import Source
from trnx.runtime.statics import static_key


@dataclass(frozen=True, slots=True)
class CallKey:
    """What a jitted function was called with.

    Attributes:
        paths: text of the way to each array, such as `batch['x']`.
        avals: its type.
        structure: text of the containers.
        statics: (name, value) of each static argument.
    """

    paths: tuple[str, ...]
    avals: tuple[Aval, ...]
    structure: str
    statics: tuple[tuple[str, Any], ...]


@dataclass(frozen=True, slots=True)
class Miss:
    """One call that had to be traced.

    Attributes:
        function: name of the function.
        defined_at: `file:line` of its definition.
        called_at: the user's line of the call.
        reasons: one sentence per difference to the nearest earlier call; empty at the first call.
        known: number of earlier keys.
    """

    function: str
    defined_at: str
    called_at: Source
    reasons: tuple[str, ...]
    known: int

    def __str__(self) -> str:
        head = f"trnx: {self.function} ({self.defined_at}), called at {self.called_at}, is traced"
        if not self.known:
            return f"{head} for the first time"
        lines = "".join(f"\n  {reason}" for reason in self.reasons)
        return f"{head} again; nearest of {self.known} earlier calls:{lines}"


@dataclass(frozen=True, slots=True)
class NewBucket:
    """A dynamic function was compiled for a bucket that it had not yet.

    Attributes:
        function: name and place of the function.
        called_at: the user's line of the call.
        chosen: (size name, true size, bucket, policy in words) per named size.
        known: buckets that were compiled before, as (size name, bucket) per named size.
    """

    function: str
    called_at: Source
    chosen: tuple[tuple[str, int, int, str], ...]
    known: tuple[tuple[tuple[str, int], ...], ...]

    def __str__(self) -> str:
        lines = [f"trnx: {self.function}, called at {self.called_at}, is compiled for a new bucket"]
        for name, size, bucket, policy in self.chosen:
            earlier = sorted({dict(known)[name] for known in self.known})
            if not earlier:
                why = "the first one"
            elif bucket in earlier:
                why = "known, but not together with the other sizes"
            else:
                why = f"compiled before: {', '.join(map(str, earlier))}"
            lines.append(f"  {name} = {size} takes bucket {bucket} ({policy}); {why}")
        return "\n".join(lines)


miss_listeners: list[Callable[[Miss | NewBucket], None]] = []
"""Called with each Miss and NewBucket; `trnx.testing.explain_recompiles` adds one."""


def wanted() -> bool:
    """True if somebody wants to know about misses."""
    return bool(miss_listeners) or config.explain.value


def report(miss: Miss | NewBucket) -> None:
    """Hand a miss to the listeners, and print it under option `explain`."""
    for listener in tuple(miss_listeners):
        listener(miss)
    if config.explain.value:
        print(miss, file=sys.stderr)


def reasons(key: CallKey, earlier: Iterable[CallKey]) -> tuple[str, ...]:
    """Differences between `key` and the nearest of the earlier keys, one sentence each."""
    found = [differences(key, old) for old in earlier]
    return min(found, key=_distance, default=())


def _distance(texts: Sequence[str]) -> tuple[bool, int]:
    return (any(text.startswith("structure") for text in texts), len(texts))


def differences(new: CallKey, old: CallKey) -> tuple[str, ...]:
    """One sentence per difference between two keys: structure, static values, types."""
    texts = []
    if new.structure != old.structure:
        added = [path for path in new.paths if path not in old.paths]
        gone = [path for path in old.paths if path not in new.paths]
        texts += [f"structure: {path} is new" for path in added]
        texts += [f"structure: {path} is gone" for path in gone]
        if not added and not gone:
            texts.append(f"structure: {old.structure} became {new.structure}")
    values = dict(old.statics)
    for name, value in new.statics:
        if name not in values or static_key(values[name]) != static_key(value):
            before = f"{values[name]!r}" if name in values else "absent"
            texts.append(f"static argument {name}: {before} became {value!r}")
    types = dict(zip(old.paths, old.avals, strict=True))
    for path, aval in zip(new.paths, new.avals, strict=True):
        before_aval = types.get(path)
        if before_aval is not None and before_aval != aval:
            texts.append(f"argument {path}: {before_aval} became {aval}")
    if not texts:
        texts.append("the device, the target or the trace around the call is another one")
    return tuple(texts)
