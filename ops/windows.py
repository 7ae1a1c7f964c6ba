"""Convolutions and reductions over windows as functions of `jax.lax` form.

They take any layout of the operands and padding by name, and put transposes and numbers around the
primitives, which have one layout each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from trnx.core import Dim, ShapeError, Size, UnsupportedError, aval_of, message, primitives
from trnx.ops import functions as op
from trnx.ops._windows import dilated
from trnx.ops.reduce import highest, lowest

Array: TypeAlias = Any
Padding: TypeAlias = "str | Sequence[tuple[Size, Size]]"


@dataclass(frozen=True, slots=True)
class ConvDimensionNumbers:
    """Which axis of each array is what.

    Attributes:
        lhs_spec: axes of the operand: batch, channels, space.
        rhs_spec: axes of the window: out channels, channels, space.
        out_spec: axes of the result: batch, out channels, space.
    """

    lhs_spec: tuple[int, ...]
    rhs_spec: tuple[int, ...]
    out_spec: tuple[int, ...]


def conv_dimension_numbers(rank: int, dimension_numbers: Any = None) -> ConvDimensionNumbers:
    """Axes of a convolution of operands with `rank` axes.

    Args:
        rank: number of axes, space and two more.
        dimension_numbers: three strings such as ``("NHWC", "HWIO", "NHWC")``, in which N, C and O,
            I name batch, channels, out channels and channels, other letters the axes of space; or
            an object with `lhs_spec`, `rhs_spec`, `out_spec`; None for NCHW, OIHW, NCHW.

    Raises:
        ShapeError: the strings do not name every axis once.
    """
    if dimension_numbers is None:
        natural = tuple(range(rank))
        return ConvDimensionNumbers(natural, natural, natural)
    if hasattr(dimension_numbers, "lhs_spec"):
        specs = [getattr(dimension_numbers, f"{name}_spec") for name in ("lhs", "rhs", "out")]
        if all(sorted(spec) == list(range(rank)) for spec in specs):
            return ConvDimensionNumbers(*map(tuple, specs))
        raise _bad_numbers(rank, specs)
    specs = list(dimension_numbers)
    leaders = ("NC", "OI", "NC")
    if len(specs) != 3 or not all(isinstance(spec, str) for spec in specs):
        raise _bad_numbers(rank, specs)
    space = [c for c in specs[1] if c not in "OI"]
    found = []
    for spec, lead in zip(specs, leaders, strict=True):
        letters = [*lead, *space]
        if sorted(spec) != sorted(letters) or len(set(spec)) != len(spec) or len(spec) != rank:
            raise _bad_numbers(rank, specs)
        found.append(tuple(spec.index(c) for c in letters))
    return ConvDimensionNumbers(*found)


def _bad_numbers(rank: int, specs: Sequence[Any]) -> ShapeError:
    return ShapeError(
        message(
            f"dimension_numbers {tuple(specs)} do not name the {rank} axes of three arrays",
            None,
            'Write ("NCHW", "OIHW", "NCHW") in the order of your axes',
        )
    )


def resolve_padding(
    name: str,
    padding: Padding,
    sizes: Sequence[Size],
    windows: Sequence[Size],
    strides: Sequence[int],
) -> tuple[tuple[Size, Size], ...]:
    """Padding as a pair per axis.

    Args:
        name: the function's, for errors.
        padding: pairs; ``"VALID"`` for none; ``"SAME"`` or ``"SAME_LOWER"`` for as many places as
            elements per stride, an odd width more behind or in front.
        sizes: of the axes, dilated.
        windows: likewise.
        strides: between places.

    Raises:
        ShapeError: an unknown name, or another number of pairs.
    """
    if not isinstance(padding, str):
        pairs = tuple((low, high) for low, high in padding)
        if len(pairs) != len(sizes):
            raise ShapeError(
                message(f"{name} got padding {padding}", None, f"Give {len(sizes)} pairs")
            )
        return pairs
    kind = padding.upper()
    if kind == "VALID":
        return ((0, 0),) * len(sizes)
    if kind not in ("SAME", "SAME_LOWER"):
        raise ShapeError(
            message(f"{name} got padding {padding!r}", None, "Use SAME, SAME_LOWER, VALID or pairs")
        )
    found: list[tuple[Size, Size]] = []
    for size, window, stride in zip(sizes, windows, strides, strict=True):
        total = ((size + (stride - 1)) // stride - 1) * stride + window - size
        if isinstance(window, Dim) or window < stride:
            total = total if total >= 0 else 0
        small = total // 2
        large = total - small
        found.append((small, large) if kind == "SAME" else (large, small))
    return tuple(found)


def conv_general_dilated(
    lhs: Array,
    rhs: Array,
    window_strides: Sequence[int],
    padding: Padding,
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: Any = None,
    feature_group_count: int = 1,
    batch_group_count: int = 1,
    preferred_element_type: Any = None,
) -> Array:
    """Convolution in any layout; the window is not flipped.

    Args:
        lhs: operand with batch, channel and space axes, in the order `dimension_numbers` says.
        rhs: window with out channel, channel and space axes, of the dtype of `lhs`.
        window_strides: one per axis of space.
        padding: a pair of widths per axis of space, negative ones cut; ``"SAME"``,
            ``"SAME_LOWER"`` or ``"VALID"``.
        lhs_dilation: elements of `lhs` move this far apart, with zeros between.
        rhs_dilation: elements of `rhs` move this far apart.
        dimension_numbers: see `conv_dimension_numbers`; NCHW, OIHW, NCHW by default.
        feature_group_count: groups of channels that do not mix.
        batch_group_count: groups of the batch, each with its own share of the out channels.
        preferred_element_type: dtype of the result; bf16 and f16 are summed in f32 anyway.

    Returns:
        ``[batch, out channels, *places]`` in the layout asked for.

    Raises:
        ShapeError: sizes, groups or layouts do not fit each other.
        DTypeError: the operands have different dtypes, or bool.
    """
    rank = len(op.shape_of(lhs))
    numbers = conv_dimension_numbers(rank, dimension_numbers)
    lhs = op.transpose(lhs, numbers.lhs_spec)
    rhs = op.transpose(rhs, numbers.rhs_spec)
    space = rank - 2
    strides = tuple(window_strides)
    lhs_dilation = (1,) * space if lhs_dilation is None else tuple(lhs_dilation)
    rhs_dilation = (1,) * space if rhs_dilation is None else tuple(rhs_dilation)
    if len(op.shape_of(rhs)) != rank or not (
        len(strides) == len(lhs_dilation) == len(rhs_dilation) == space
    ):
        raise ShapeError(
            message(
                f"conv_general_dilated of {aval_of(lhs)} and {aval_of(rhs)} got strides "
                f"{strides}, lhs_dilation {lhs_dilation}, rhs_dilation {rhs_dilation}",
                None,
                f"Give operands of one rank, and {space} of each",
            )
        )
    pairs = resolve_padding(
        "conv_general_dilated",
        padding,
        [dilated(n, d) for n, d in zip(op.shape_of(lhs)[2:], lhs_dilation, strict=True)],
        [dilated(n, d) for n, d in zip(op.shape_of(rhs)[2:], rhs_dilation, strict=True)],
        strides,
    )
    groups = feature_group_count
    if batch_group_count != 1:
        lhs = _batch_groups(lhs, rhs, feature_group_count, batch_group_count)
        groups = batch_group_count
    out = op.conv(
        lhs,
        rhs,
        strides=strides,
        padding=pairs,
        lhs_dilation=lhs_dilation,
        rhs_dilation=rhs_dilation,
        groups=groups,
        out_dtype=preferred_element_type,
    )
    inverse = sorted(range(rank), key=numbers.out_spec.__getitem__)
    return op.transpose(out, inverse)


def _batch_groups(lhs: Array, rhs: Array, features: int, groups: int) -> Array:
    """Groups of the batch as groups of channels: what one sums over, the others do not see."""
    batch, channels, *space = op.shape_of(lhs)
    count = batch % groups if groups > 0 else 1
    if features != 1 or (isinstance(count, int) and count):
        raise ShapeError(
            message(
                f"conv_general_dilated of {aval_of(lhs)} and {aval_of(rhs)} in {groups} groups of "
                f"the batch and {features} of channels",
                None,
                "batch_group_count must divide the batch, and feature_group_count be 1 then",
            )
        )
    apart = op.reshape(lhs, (groups, batch // groups, channels, *space))
    return op.reshape(op.moveaxis(apart, 0, 1), (batch // groups, groups * channels, *space))


_COMPUTATIONS: dict[str, tuple[str, Callable[[Array, Array], Array]]] = {
    "add": ("sum", op.add),
    "max": ("max", op.max),
    "min": ("min", op.min),
    "mul": ("prod", op.mul),
}


def reduce_window(
    operand: Array,
    init_value: Array,
    computation: str | Callable[..., Any],
    window_dimensions: Sequence[int],
    window_strides: Sequence[int] | None = None,
    padding: Padding = "VALID",
    base_dilation: Sequence[int] | None = None,
    window_dilation: Sequence[int] | None = None,
) -> Array:
    """A reduction over every place of a window.

    Args:
        operand: the array.
        init_value: number that each reduction begins with; padding adds nothing to it.
        computation: `trnx.lax.add`, `max`, `min` or `mul`, or one of these names.
        window_dimensions: size of the window, one per axis of the operand.
        window_strides: steps between places; 1 by default.
        padding: a pair of widths per axis, negative ones cut; ``"SAME"``, ``"SAME_LOWER"`` or
            ``"VALID"``.
        base_dilation: elements of the operand move this far apart, with nothing between.
        window_dilation: taps of the window move this far apart.

    Returns:
        An array of the dtype of the operand, with an element per place.

    Raises:
        ShapeError: a sequence has not one entry per axis.
        UnsupportedError: another computation; compose it from slices.
    """
    name = computation if isinstance(computation, str) else getattr(computation, "__name__", "?")
    known = _COMPUTATIONS.get(name)
    own = getattr(computation, "__wrapped__", computation)  # public functions wrap those of ops
    if known is None or not (isinstance(computation, str) or own is known[1]):
        raise UnsupportedError(
            message(
                f"reduce_window with the computation {name}",
                None,
                "Use add, max, min or mul of trnx.lax, or combine slices",
            )
        )
    kind, combine = known
    aval = aval_of(operand)
    ones = (1,) * aval.ndim
    window = tuple(window_dimensions)
    strides = ones if window_strides is None else tuple(window_strides)
    base = ones if base_dilation is None else tuple(base_dilation)
    apart = ones if window_dilation is None else tuple(window_dilation)
    if any(len(values) != aval.ndim for values in (window, strides, base, apart)):
        raise ShapeError(
            message(
                f"reduce_window of {aval} got window {window}, strides {strides}, dilation {base} "
                f"and {apart}",
                None,
                f"Give {aval.ndim} of each",
            )
        )
    sizes = [dilated(n, d) for n, d in zip(aval.shape, base, strict=True)]
    reach = [dilated(n, d) for n, d in zip(window, apart, strict=True)]
    pairs = resolve_padding("reduce_window", padding, sizes, reach, strides)
    identity = {"sum": 0, "max": lowest(aval.dtype), "min": highest(aval.dtype), "prod": 1}[kind]
    is_identity = isinstance(init_value, bool | int | float) and init_value == identity
    init_value = op.scalar_like(init_value, operand)
    out = primitives[f"reduce_window_{kind}"].bind(
        operand,
        window=window,
        strides=strides,
        padding=pairs,
        base_dilation=base,
        window_dilation=apart,
    )
    return out if is_identity else combine(out, op.spread(init_value, out))
