"""Random programs over `trnx.numpy`, each with its meaning in high precision.

A :class:`RandomProgram` is a list of steps; a step reads values made before and makes one. It runs
as trnx array code (`run`) and as bounded arithmetic (`meaning`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from hypothesis import strategies as st

import trnx.numpy as tn
from tests.fuzz import bounded as b
from tests.fuzz.bounded import Bounded
from trnx import lax, nn

SIZES = (1, 1, 2, 3, 5, 7, 8, 12, 127, 128, 129, 257, 513)
FLOATS = (np.float32, np.float32, np.float32, ml_dtypes.bfloat16, np.float16, np.float64)
OTHERS = (np.int32, np.int32, np.uint32, np.int8, np.uint8, np.bool_, np.int64)
LARGEST = 60000
DRAWN = 1e3

Run = Callable[..., Any]
Meaning = Callable[..., Bounded]


@dataclass(frozen=True, slots=True)
class Step:
    """One operation: its text, the values it reads, and both ways to compute it."""

    text: str
    operands: tuple[int, ...]
    run: Run
    meaning: Meaning


@dataclass(frozen=True, slots=True)
class RandomProgram:
    """Inputs by (shape, dtype), steps, and which values are returned."""

    inputs: tuple[tuple[tuple[int, ...], np.dtype[Any]], ...]
    steps: tuple[Step, ...]
    outputs: tuple[int, ...]

    def run(self, *args: Any) -> list[Any]:
        """The program as array code."""
        values = list(args)
        for step in self.steps:
            values.append(step.run(*(values[i] for i in step.operands)))
        return [values[i] for i in self.outputs]

    def meaning(self, args: Sequence[Any], narrow: bool) -> list[Bounded]:
        """Its results in high precision."""
        values = [b.bounded(a, narrow) for a in args]
        for step in self.steps:
            values.append(step.meaning(*(values[i] for i in step.operands)))
        return [values[i] for i in self.outputs]

    def __str__(self) -> str:
        lines = [f"v{i} = input {b.short(d)}{s}" for i, (s, d) in enumerate(self.inputs)]
        for number, step in enumerate(self.steps, len(self.inputs)):
            operands = ", ".join(f"v{i}" for i in step.operands)
            lines.append(f"v{number} = {step.text} {operands}")
        return "\n".join([*lines, f"return {', '.join(f'v{i}' for i in self.outputs)}"])


def arguments(program: RandomProgram, seed: int) -> list[Any]:
    """Arrays for the inputs: normal floats, integers of a few digits."""
    generator = np.random.default_rng(seed)
    args: list[Any] = []
    for shape, dtype in program.inputs:
        if dtype == np.bool_:
            args.append(generator.integers(0, 2, shape).astype(np.bool_))
        elif dtype.kind in "iu":
            low = 0 if dtype.kind == "u" else -9
            args.append(np.asarray(generator.integers(low, 90, shape)).astype(dtype))
        else:
            args.append(np.asarray(generator.standard_normal(shape)).astype(dtype))
    return args


# name -> (array function, high precision function)
MONOTONE: dict[str, tuple[Run, Callable[[Any], Any]]] = {
    "tanh": (tn.tanh, np.tanh),
    "negative": (tn.negative, np.negative),
    "sigmoid": (nn.sigmoid, lambda x: 1 / (1 + np.exp(-x))),
    "expm1": (lambda x: tn.expm1(tn.minimum(x, 3.0)), lambda x: np.expm1(np.minimum(x, 3.0))),
    "exp": (lambda x: tn.exp(tn.minimum(x, 3.0)), lambda x: np.exp(np.minimum(x, 3.0))),
    "log1p": (lambda x: tn.log1p(nn.relu(x)), lambda x: np.log1p(np.maximum(x, 0))),
    "sqrt": (lambda x: tn.sqrt(nn.relu(x)), lambda x: np.sqrt(np.maximum(x, 0))),
    "relu": (nn.relu, lambda x: np.maximum(x, 0)),
}
LIPSCHITZ: dict[str, tuple[Run, Callable[[Any], Any]]] = {
    "sin": (tn.sin, np.sin),
    "cos": (tn.cos, np.cos),
    "abs": (tn.abs, np.abs),
    "erf": (lax.erf, lambda x: np.vectorize(math.erf, otypes=[float])(x) if np.size(x) else x),
}
COMPARISONS = {
    "less": np.less, "less_equal": np.less_equal, "greater": np.greater,
    "greater_equal": np.greater_equal, "equal": np.equal, "not_equal": np.not_equal,
}  # fmt: skip
SMOOTH_MONOTONE = ("tanh", "negative", "sigmoid")
SMOOTH_LIPSCHITZ = ("sin", "cos", "erf")


class Drawer:
    """Draws a program one step at a time, beside its high precision values."""

    def __init__(self, number: Callable[[int, int], int], smooth: bool, seed: int) -> None:
        self.number = number  # draws an integer from low to high
        self.smooth = smooth
        count = self.number(1, 3)
        self.inputs = tuple((self.shape(), self.dtype()) for _ in range(count))
        self.steps: list[Step] = []
        given = arguments(RandomProgram(self.inputs, (), ()), seed)
        self.values = [b.bounded(a, False) for a in given]
        kinds = [name for name in dir(self) if name.startswith("step_")]
        self.kinds = [n for n in kinds if not (smooth and n in ROUGH)]

    def choice(self, options: Sequence[Any]) -> Any:
        return options[self.number(0, len(options) - 1)]

    def order(self, items: Sequence[Any]) -> tuple[Any, ...]:
        """A permutation."""
        left = list(items)
        return tuple(left.pop(self.number(0, len(left) - 1)) for _ in range(len(left)))

    def flag(self) -> bool:
        return bool(self.number(0, 1))

    def dtype(self) -> np.dtype[Any]:
        if self.smooth:
            return np.dtype(np.float64)
        return np.dtype(self.choice(FLOATS if self.number(0, 2) else OTHERS))

    def shape(self) -> tuple[int, ...]:
        sizes = SIZES[:8] if self.smooth else SIZES
        shape = tuple(self.choice(sizes) for _ in range(self.number(0, 3)))
        if shape and not self.smooth and self.number(0, 30) == 0:
            shape = (*shape[:-1], 0)
        return shape if math.prod(shape) <= LARGEST else shape[:1]

    def pick(self, kind: str = "fib", rank: int = 0) -> int:
        """A value; one of the latest more often, so that programs are deep."""
        fits = [i for i, v in enumerate(self.values) if v.kind in kind and v.ndim >= rank]
        if not fits:
            return -1
        return fits[-1 - min(self.number(0, len(fits) - 1), self.number(0, len(fits) - 1))]

    def add(self, text: str, operands: tuple[int, ...], run: Run, meaning: Meaning) -> None:
        """Append a step unless its value is too large, or says nothing any more."""
        value = meaning(*(self.values[i] for i in operands))
        if value.value.size > LARGEST or value.ndim > 6:
            return
        if value.kind == "f" and value.value.size:
            big = np.max(np.abs(value.value))
            if not big < DRAWN or np.mean(value.error <= 0.05 * (1 + np.abs(value.value))) < 0.5:
                return
        elif np.any(value.error > 0) and np.mean(value.error == 0) < 0.5:
            return
        self.values.append(value)
        self.steps.append(Step(text, operands, run, meaning))

    def step(self) -> None:
        getattr(self, self.choice(self.kinds))()

    # ---- elementwise
    def step_monotone(self) -> None:
        i = self.pick("f")
        if i >= 0:
            name = self.choice(SMOOTH_MONOTONE if self.smooth else tuple(MONOTONE))
            run, exact = MONOTONE[name]
            self.add(name, (i,), run, lambda x: b.monotone(x, exact))

    def step_lipschitz(self) -> None:
        i = self.pick("f")
        if i >= 0:
            name = self.choice(SMOOTH_LIPSCHITZ if self.smooth else tuple(LIPSCHITZ))
            run, exact = LIPSCHITZ[name]
            self.add(name, (i,), run, lambda x: b.lipschitz(x, exact, 1.2))

    def pair(self, kind: str) -> tuple[int, int] | None:
        """Two values that promote and broadcast together."""
        i = self.pick(kind)
        if i < 0:
            return None
        fits = []
        for j, value in enumerate(self.values):
            if value.kind not in kind:
                continue
            try:
                np.broadcast_shapes(value.shape, self.values[i].shape)
            except ValueError:
                continue
            fits.append(j)
        j = self.choice(fits)
        return (i, j) if self.flag() else (j, i)

    def step_arithmetic(self) -> None:
        pair = self.pair("fi")
        if pair:
            name = self.choice(("add", "subtract", "multiply"))
            meaning: Meaning = {
                "add": b.add, "subtract": lambda x, y: b.add(x, y, -1), "multiply": b.mul,
            }[name]  # fmt: skip
            self.add(name, pair, getattr(tn, name), meaning)

    def step_divide(self) -> None:
        pair = self.pair("f")
        if pair:

            def meaning(x: Bounded, y: Bounded) -> Bounded:
                one = Bounded(np.array(1.0), np.array(0.0), y.dtype, y.narrow)
                return b.div(x, b.add(b.mul(y, y), one))

            self.add("x / (y*y + 1)", pair, lambda x, y: x / (y * y + 1), meaning)

    def step_weak_scalar(self) -> None:
        i = self.pick("fi")
        if i >= 0:
            scale, shift = self.number(-3, 3), self.number(0, 5)
            if self.values[i].dtype.kind == "u":
                scale = abs(scale)

            def meaning(x: Bounded) -> Bounded:
                kind = np.float64 if x.kind == "f" else np.int64
                s, t = (Bounded(np.array(v, kind), np.zeros(()), x.dtype, x.narrow)
                        for v in (scale, shift))  # fmt: skip
                return b.add(b.mul(x, s), t)

            self.add(f"x * {scale} + {shift}", (i,), lambda x: x * scale + shift, meaning)

    def step_extremum(self) -> None:
        pair = self.pair("fi")
        if pair:
            name = self.choice(("maximum", "minimum"))
            exact = getattr(np, name)
            self.add(name, pair, getattr(tn, name), lambda x, y: b.extremum(x, y, exact))

    def step_compare(self) -> None:
        pair = self.pair("fi")
        if pair:
            name = self.choice(tuple(COMPARISONS))
            exact = COMPARISONS[name]
            self.add(name, pair, getattr(tn, name), lambda x, y: b.compare(x, y, exact))

    def step_where(self) -> None:
        pair = self.pair("fi")
        conditions = [i for i, v in enumerate(self.values) if v.kind == "b"]
        if pair and conditions:
            c = self.choice(conditions)
            shape = np.broadcast_shapes(*(self.values[i].shape for i in pair))
            if self.values[c].shape in (shape, ()) or not shape:
                self.add("where", (c, *pair), tn.where, b.select)

    def step_cast(self) -> None:
        i = self.pick()
        if i >= 0:
            dtype = self.dtype()
            self.add(
                f"astype {b.short(dtype)}",
                (i,),
                lambda x: x.astype(dtype),
                lambda x: b.cast(x, dtype),
            )

    # ---- movement
    def moved(self, text: str, i: int, run: Run, function: Callable[[Any], Any]) -> None:
        self.add(text, (i,), run, lambda x: b.move(x, function))

    def step_transpose(self) -> None:
        i = self.pick(rank=2)
        if i >= 0:
            axes = self.order(range(self.values[i].ndim))
            self.moved(f"transpose{axes}", i, lambda x: tn.transpose(x, axes),
                       lambda x: np.transpose(x, axes))  # fmt: skip

    def step_reshape(self) -> None:
        i = self.pick()
        size = self.values[i].value.size
        factor = self.choice([d for d in (1, 2, 3, 4, 5, 7, 8, 12, 128) if size % d == 0])
        shape = self.choice([(size,), (factor, -1), (-1, factor), (factor, 1, -1)])
        if size:
            self.moved(f"reshape{shape}", i, lambda x: tn.reshape(x, shape),
                       lambda x: np.reshape(x, shape))  # fmt: skip

    def step_index(self) -> None:
        i = self.pick(rank=1)
        if i < 0:
            return
        index: list[Any] = []
        for n in self.values[i].shape:
            kind = self.number(0, 5)
            if kind == 0 and n:
                index.append(self.number(-n, n - 1))
            elif kind == 1:
                index.append(slice(None))
            elif kind == 2:
                index.append(slice(None, None, -self.number(1, 3)))
            elif kind == 3:
                index.append(None)
                index.append(slice(self.number(0, n), None))
            else:
                start = self.number(0, n)
                index.append(slice(start, self.number(start, n), self.number(1, 3)))
        at = tuple(index)
        self.moved(f"{at}", i, lambda x: x[at], lambda x: x[at])

    def step_broadcast(self) -> None:
        i = self.pick()
        value = self.values[i]
        if value.ndim < 3:
            at = self.number(0, value.ndim)
            size = self.choice(SIZES)
            shape = (*value.shape[:at], size, *value.shape[at:])
            self.moved(
                f"expand {at} to {shape}",
                i,
                lambda x: tn.broadcast_to(tn.expand_dims(x, at), shape),
                lambda x: np.broadcast_to(np.expand_dims(x, at), shape),
            )

    def step_join(self) -> None:
        i = self.pick(rank=1)
        if i < 0:
            return
        value = self.values[i]
        axis = self.number(0, value.ndim - 1)
        fits = [
            j
            for j, v in enumerate(self.values)
            if v.dtype == value.dtype
            and v.ndim == value.ndim
            and all(n == m or a == axis
                    for a, (n, m) in enumerate(zip(v.shape, value.shape, strict=True)))
        ]  # fmt: skip
        chosen = (i, *(self.choice(fits) for _ in range(self.number(1, 2))))
        self.add(
            f"concatenate[{axis}]",
            chosen,
            lambda *x: tn.concatenate(x, axis),
            lambda *x: b.move_all(x, lambda v: np.concatenate(v, axis)),
        )

    def step_rearrange(self) -> None:
        i = self.pick(rank=1)
        if i < 0:
            return
        axis, by = self.number(0, self.values[i].ndim - 1), self.number(1, 3)
        name, run, exact = self.choice((
            ("flip", lambda x: tn.flip(x, axis), lambda x: np.flip(x, axis)),
            ("roll", lambda x: tn.roll(x, by, axis), lambda x: np.roll(x, by, axis)),
            ("repeat", lambda x: tn.repeat(x, by, axis), lambda x: np.repeat(x, by, axis)),
            ("tile", lambda x: tn.tile(x, by), lambda x: np.tile(x, by)),
            ("pad", lambda x: tn.pad(x, by), lambda x: np.pad(x, by)),
        ))  # fmt: skip
        self.moved(f"{name}[{axis}, {by}]", i, run, exact)

    def step_take(self) -> None:
        i = self.pick(rank=1)
        if i < 0:
            return
        axis = self.number(0, self.values[i].ndim - 1)
        size = self.values[i].shape[axis]
        if size:
            at = np.array([self.number(0, size - 1) for _ in range(self.number(1, 4))], np.int32)
            self.moved(f"take[{axis}] {at}", i, lambda x: tn.take(x, at, axis),
                       lambda x: np.take(x, at, axis))  # fmt: skip

    def step_lookup(self) -> None:
        """Rows by indices that the program computed."""
        i, j = self.pick("fi", 1), self.pick("i")
        if i < 0 or j < 0 or not self.values[i].shape[0]:
            return
        if self.values[j].dtype.kind == "u" or np.any(self.values[j].error):
            return
        size = self.values[i].shape[0]

        def meaning(x: Bounded, k: Bounded) -> Bounded:
            index = np.abs(k.value) % size
            doubt = np.reshape(k.error > 0, k.shape + (1,) * (x.ndim - 1))
            moved = b.move(x, lambda v: v[index])
            error = np.where(doubt, np.inf, moved.error)
            return Bounded(moved.value, error, x.dtype, x.narrow)

        self.add("x[abs(k) % n]", (i, j), lambda x, k: x[tn.abs(k.astype("i64")) % size], meaning)

    # ---- reductions and contractions
    def step_reduce(self) -> None:
        i = self.pick("fi", 1)
        if i < 0:
            return
        value = self.values[i]
        axes = tuple(a for a in range(value.ndim) if self.flag()) or (value.ndim - 1,)
        keep = self.flag()
        name = self.choice(("sum", "mean") if self.smooth else ("sum", "max", "min", "mean"))
        if name == "sum":
            self.add(f"sum{axes}", (i,), lambda x: tn.sum(x, axes, keepdims=keep),
                     lambda x: b.reduce_sum(x, axes, keep))  # fmt: skip
        elif value.value.size and name == "mean" and value.kind == "f":
            count = math.prod(value.shape[a] for a in axes)

            def meaning(x: Bounded) -> Bounded:
                total = b.reduce_sum(x, axes, keep)
                size = Bounded(np.array(float(count)), np.zeros(()), x.dtype, x.narrow)
                if b.short(x.dtype) in ("bf16", "f16"):  # summed and divided in float32
                    wide = b.reduce_sum(b.cast(x, np.float32), axes, keep)
                    return b.cast(b.div(wide, b.cast(size, np.float32)), x.dtype)
                return b.div(total, size)

            self.add(f"mean{axes}", (i,), lambda x: tn.mean(x, axes, keepdims=keep), meaning)
        elif value.value.size and name in ("max", "min"):
            self.add(
                f"{name}{axes}",
                (i,),
                lambda x: getattr(tn, name)(x, axes, keepdims=keep),
                lambda x: b.reduce_extremum(x, axes, keep, name),
            )

    def step_argmax(self) -> None:
        i = self.pick("fi", 1)
        if i >= 0 and self.values[i].value.size:
            axis, keep = self.number(0, self.values[i].ndim - 1), self.flag()
            name = self.choice(("argmax", "argmin"))
            self.add(
                f"{name}[{axis}]",
                (i,),
                lambda x: getattr(tn, name)(x, axis, keepdims=keep),
                lambda x: b.arg_extremum(x, axis, keep, name),
            )

    def step_softmax(self) -> None:
        i = self.pick("f", 1)
        if i < 0 or not self.values[i].value.size:
            return
        axis = self.number(0, self.values[i].ndim - 1)

        def meaning(x: Bounded) -> Bounded:
            wide = b.cast(x, np.float32) if b.short(x.dtype) in ("bf16", "f16") else x
            top = b.reduce_extremum(wide, (axis,), True, "max")
            exact = Bounded(top.value, np.zeros(top.shape), wide.dtype, x.narrow)
            power = b.monotone(b.add(wide, exact, -1), np.exp)
            total = b.reduce_sum(power, (axis,), True)
            return b.cast(b.div(power, total), x.dtype)

        self.add(f"softmax[{axis}]", (i,), lambda x: nn.softmax(x, axis), meaning)

    def step_contract(self) -> None:
        i, j = self.pick("fi"), self.pick("fi")
        if min(i, j) < 0:
            return
        x, y = self.values[i], self.values[j]
        if x.kind != y.kind or max(x.ndim, y.ndim) > 4:
            return
        left, right = list("abcd"[: x.ndim]), list("wxyz"[: y.ndim])
        out: list[str] = []
        size = 1
        for p, n in enumerate(x.shape):
            matches = [q for q, m in enumerate(y.shape) if m == n and right[q] in "wxyz"]
            kind = self.number(0, 2)
            if matches and kind:
                right[self.choice(matches)] = left[p]
                if kind == 1:
                    size *= n
                    continue
            out.append(left[p])
        out += [name for name in right if name in "wxyz"]
        out = self.order(out)
        spec = f"{''.join(left)},{''.join(right)}->{''.join(out)}"
        sizes = dict(zip(left + right, x.shape + y.shape, strict=True))
        if len(out) <= 4 and math.prod(sizes.values()) <= 4 * 10**6:
            self.add(
                spec,
                (i, j),
                lambda x, y: tn.einsum(spec, x, y),
                lambda x, y: b.contract(spec, x, y, size),
            )


# Steps without a derivative, or whose derivative jumps.
ROUGH = frozenset(
    ("step_extremum", "step_compare", "step_where", "step_cast", "step_argmax", "step_lookup")
)


def build_program(
    number: Callable[[int, int], int], most: int = 12, smooth: bool = False
) -> tuple[RandomProgram, int]:
    """A program and the seed of arguments for which its values stay in range.

    Args:
        number: draws an integer from low to high.
        most: largest number of steps tried.
        smooth: float64 only, and differentiable everywhere.
    """
    seed = number(0, 999)
    drawer = Drawer(number, smooth, seed)
    for _ in range(number(1, most)):
        drawer.step()
    start = len(drawer.inputs) if drawer.steps else 0
    last = range(start, len(drawer.values))
    outputs = {last[-1], *(i for i in last if number(0, 3) == 0)}
    return RandomProgram(drawer.inputs, tuple(drawer.steps), tuple(sorted(outputs))), seed


@st.composite
def random_program(
    draw: st.DrawFn, most: int = 12, smooth: bool = False
) -> tuple[RandomProgram, int]:
    """`build_program` as a strategy."""
    return build_program(lambda low, high: draw(st.integers(low, high)), most, smooth)
