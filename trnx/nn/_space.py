"""Numbers per axis of space."""

from __future__ import annotations

from collections.abc import Sequence

from trnx.core import ShapeError, message


def per_axis(
    name: str, what: str, value: int | Sequence[int], rank: int, least: int = 1
) -> tuple[int, ...]:
    """A number for every one of `rank` axes.

    Raises:
        ShapeError: another count, or a number below `least`.
    """
    values = (value,) * rank if isinstance(value, int) else tuple(value)
    if len(values) != rank or any(v < least for v in values):
        raise ShapeError(
            message(
                f"{name} over {rank} axes of space got {what} {value}",
                None,
                f"Give a number from {least} up, or one per axis",
            )
        )
    return values
