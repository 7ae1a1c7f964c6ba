"""Rules of sorting."""

from __future__ import annotations

from typing import Any

from trnx.interop.jax.registry import Site, Value, rule
from trnx.ops import functions as op


@rule("sort")
def _sort(
    site: Site, *operands: Value, dimension: int, num_keys: int, is_stable: bool = True, **_: Any
) -> list[Value]:
    """A stable sort is right for an unstable one too."""
    return list(op.sort(list(operands), dimension, num_keys))


@rule("top_k")
def _top_k(site: Site, x: Value, *, k: int, axis: int = -1, **_: Any) -> list[Value]:
    values, places = op.top_k(x, k, axis % len(site.operands[0].shape))
    return [values, op.convert(places, site.results[1].dtype)]
