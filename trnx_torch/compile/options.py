"""What ``torch.compile(backend="neuron", options={...})`` takes."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trnx.runtime.buckets import Buckets, as_buckets

KNOWN = ("artifacts", "buckets", "fallback_execution")


@dataclass(frozen=True, slots=True)
class Options:
    """Options of one compiled function.

    Attributes:
        buckets: which sizes the dynamic dimensions of the graph are padded to: a policy of
            :mod:`trnx.runtime.buckets`, a list of sizes, or one of these per symbol. Powers of two
            unless given.
        fallback_execution: a graph with an operator that has no rule runs eagerly, with a warning,
            instead of failing the compile.
        artifacts: directory that gets the graph, IR, tile program, NKI source and modelled cost of
            everything compiled.
    """

    buckets: Buckets = field(default_factory=Buckets)
    fallback_execution: bool = False
    artifacts: Path | None = None


def parse(options: Mapping[str, Any] | None, mode: str | None = None) -> Options:
    """Options from what the user wrote.

    Raises:
        ValueError: an unknown option.
        TypeError: a value of the wrong type.
    """
    if mode not in (None, "default"):
        warnings.warn(
            f"backend 'neuron' has one mode; mode={mode!r} changes nothing. Leave it out.",
            UserWarning,
            stacklevel=2,
        )
    given = dict(options or {})
    unknown = [name for name in given if name not in KNOWN]
    if unknown:
        raise ValueError(
            f"backend 'neuron' has no option {', '.join(map(repr, unknown))}. "
            f"Use {', '.join(map(repr, KNOWN))}, or leave it out."
        )
    fallback = given.get("fallback_execution", False)
    if not isinstance(fallback, bool):
        raise TypeError(f"fallback_execution={fallback!r} is no bool. Use True or False.")
    directory = given.get("artifacts")
    if directory is not None and not isinstance(directory, str | Path):
        raise TypeError(f"artifacts={directory!r} is no directory. Use a path.")
    return Options(
        as_buckets(given.get("buckets")),
        fallback,
        None if directory is None else Path(directory),
    )
