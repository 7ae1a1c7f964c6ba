"""The compiler's own view of windows that overlap: no data move, an access pattern repeats them."""

from __future__ import annotations

from trnx.core import Aval, Primitive
from trnx.ops._windows import Sizes, window_counts


def _abstract(x: Aval, *, window: Sizes, strides: Sizes, dilation: Sizes) -> Aval:
    rank = len(window)
    first = x.ndim - rank
    ones = (1,) * rank
    counts = window_counts(
        "windows", x.shape[first:], window, strides, ((0, 0),) * rank, ones, dilation
    )
    return Aval((*x.shape[:first], *counts, *window), x.dtype)


WINDOWS = Primitive(
    "windows",
    abstract=_abstract,
    doc="Every place of a window over the last axes: [..., *places, *window]; only passes make it.",
    register=False,
)
