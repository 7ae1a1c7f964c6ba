"""Hypothesis strategies for legal tile programs with inputs and error bounds.

``random_case()`` draws a program of one to three kernels (elementwise chains, reductions, matmuls,
transposes, strided and indirect copies, integer arithmetic, scans, top-8, register loops), already
placed, marked parallel, scheduled and legal. For each output it knows how far two correct
implementations may be apart: 0 where every operation is exact or rounded once (then results are
bit-equal), else an absolute tolerance from forward error analysis.

    @given(random_case())
    def test_host(case):
        case.check(run_on_host(case.program, case.inputs), simulate(...).outputs)

``random_tile_program(draw)`` gives the bare ``(program, inputs)``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from trnx.compiler.targets import TARGETS
from trnx.compiler.tile.build import KernelBuilder, predicate
from trnx.compiler.tile.expr import Index, minimum
from trnx.compiler.tile.ir import Buffer, Kernel, KernelCall, TileProgram
from trnx.compiler.tile.legality import check_program
from trnx.compiler.tile.parallel import mark_parallel
from trnx.compiler.tile.place import place
from trnx.compiler.tile.schedule import schedule
from trnx.compiler.tile.views import TileView
from trnx.core.dtypes import bfloat16, bool_, float16, float32, float64, int32, uint8, uint32

Array = NDArray[Any]
Draw = Callable[[st.SearchStrategy[Any]], Any]

EPSILON = {float64: 2.0**-52, float32: 2.0**-23, float16: 2.0**-10, bfloat16: 2.0**-7}
"""Relative spacing of the floating types."""

FUNCTION_ULPS = 4.0
"""Two evaluations of one function within 2 ulp each are within 4."""


@dataclass
class RandomCase:
    """A program, its inputs, and the tolerance of each output (0: bit-equal)."""

    program: TileProgram
    inputs: list[Array]
    tolerances: list[float]

    def check(self, actual: Sequence[Array], expected: Sequence[Array]) -> None:
        """Raise AssertionError where ``actual`` is further from ``expected`` than allowed."""
        for name, tolerance, got, want in zip(
            self.program.outputs, self.tolerances, actual, expected, strict=True
        ):
            assert got.dtype == want.dtype and got.shape == want.shape, name
            if tolerance == 0.0:
                _assert_bits_equal(name, got, want)
                continue
            a, b = got.astype(float64), want.astype(float64)
            off = ~((np.abs(a - b) <= tolerance) | (a == b) | (np.isnan(a) & np.isnan(b)))
            if off.any():
                at = tuple(int(i) for i in np.argwhere(off)[0])
                raise AssertionError(
                    f"{name}{list(at)}: {a[at]!r} and {b[at]!r} differ by more than {tolerance:g}"
                )


def _assert_bits_equal(name: str, got: Array, want: Array) -> None:
    raw = np.dtype(f"u{got.dtype.itemsize}")
    same = np.ascontiguousarray(got).view(raw) == np.ascontiguousarray(want).view(raw)
    if got.dtype.kind not in "iub":
        same |= np.isnan(got.astype(float64)) & np.isnan(want.astype(float64))
        same |= (got.astype(float64) == 0) & (want.astype(float64) == 0)
    if not same.all():
        at = tuple(int(i) for i in np.argwhere(~same)[0])
        raise AssertionError(f"{name}{list(at)}: {got[at]!r} and {want[at]!r} must be bit-equal")


@dataclass
class Value:
    """A tile in a chain: absolute values stay below ``bound``, two runs below ``error`` apart."""

    view: TileView
    bound: float
    error: float

    @property
    def dtype(self) -> np.dtype[Any]:
        """Element type."""
        return self.view.dtype


@dataclass
class _Output:
    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    bound: float
    error: float


@dataclass
class Generator:
    """Draws one program kernel by kernel."""

    draw: Draw
    target: str
    buffers: list[Buffer] = field(default_factory=list)
    inputs: list[Array] = field(default_factory=list)
    kernels: list[Kernel] = field(default_factory=list)
    calls: list[KernelCall] = field(default_factory=list)
    outputs: list[_Output] = field(default_factory=list)
    registers: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(self.draw(st.integers(0, 2**32 - 1)))
        self.native = TARGETS[self.target].native_f64
        self.wide_alu = TARGETS[self.target].scalar_alu != ()

    # Pieces -----------------------------------------------------------------------------------

    def pick(self, *choices: Any) -> Any:
        """One of the choices."""
        return self.draw(st.sampled_from(choices))

    def integer(self, low: int, high: int) -> int:
        """An integer in the closed range."""
        return self.draw(st.integers(low, high))

    def name(self, prefix: str) -> str:
        """A fresh buffer name."""
        return f"{prefix}{len(self.buffers)}"

    def float_dtype(self) -> np.dtype[Any]:
        """Mostly f32."""
        narrow = [bfloat16, float16]
        return self.pick(float32, float32, float32, *narrow, *([float64] if self.native else []))

    def data(self, shape: tuple[int, ...], dtype: np.dtype[Any], bound: float = 2.0) -> Array:
        """Random elements: floats within the bound, integers over their whole range."""
        if dtype == bool_:
            return self.random.integers(0, 2, shape).astype(bool_)
        if dtype.kind in "iu":
            info = np.iinfo(dtype)
            return self.random.integers(info.min, info.max, shape, dtype, endpoint=True)
        values = self.random.uniform(-bound, bound, shape)
        # A few repeated and special values: ties, zeros of both signs.
        special = np.array([0.0, -0.0, 1.0, -1.0, 0.5])
        chosen = self.random.random(shape) < 0.1
        values[chosen] = self.random.choice(special, int(chosen.sum()))
        return values.astype(float32).astype(dtype)

    def new_input(self, array: Array) -> str:
        """Add an input buffer."""
        name = self.name("x")
        self.buffers.append(Buffer(name, array.shape, array.dtype, "input"))
        self.inputs.append(array)
        return name

    def new_output(
        self, shape: tuple[int, ...], dtype: np.dtype[Any], bound: float, error: float
    ) -> str:
        """Add an output buffer with its error bound."""
        name = self.name("y")
        self.buffers.append(Buffer(name, shape, dtype, "output"))
        self.outputs.append(_Output(name, shape, dtype, bound, error))
        return name

    def finish_kernel(
        self, builder: KernelBuilder, buffers: Sequence[str], registers: Sequence[int] = ()
    ) -> None:
        """Place, mark, schedule and call a kernel on buffers in parameter order."""
        kernel = schedule(mark_parallel(place(builder.finish(), self.target)))
        self.kernels.append(kernel)
        self.calls.append(KernelCall(len(self.kernels) - 1, tuple(buffers), tuple(registers)))

    def builder(self) -> KernelBuilder:
        """A builder for the next kernel."""
        return KernelBuilder(f"k{len(self.kernels)}", self.target)

    # Elementwise ------------------------------------------------------------------------------

    def elementwise(self) -> None:
        """Row tiles of one to three operands through a chain of instructions."""
        rows, columns = self.integer(1, 200), self.integer(1, 96)
        reuse = [o for o in self.outputs if len(o.shape) == 2 and o.dtype == float32]
        count = self.integer(1, 3)
        sources: list[tuple[str, np.dtype[Any], float, float]] = []
        if reuse and self.draw(st.booleans()):
            chosen = self.pick(*reuse)
            rows, columns = chosen.shape
            sources.append((chosen.name, chosen.dtype, chosen.bound, chosen.error))
        while len(sources) < count:
            dtype = self.float_dtype()
            sources.append((self.new_input(self.data((rows, columns), dtype)), dtype, 2.0, 0.0))
        b = self.builder()
        views = [
            b.param(f"a{i}", (rows, columns), dtype, "in")
            for i, (_, dtype, _, _) in enumerate(sources)
        ]
        out_dtype = self.float_dtype()
        y = b.param("y", (rows, columns), out_dtype, "out")
        step = self.pick(32, 64, 128)
        steps = self.integer(1, 6)
        result: Value | None = None
        with b.loop("i", 0, -(-rows // step)) as i:
            r = minimum(step, rows - i * step)
            values = []
            for view, (_, dtype, bound, error) in zip(views, sources, strict=True):
                tile = b.sbuf((step, columns), dtype)
                b.dma_copy(tile[:r], view[i * step : i * step + r], engine=self.pick(*QUEUES))
                values.append(Value(tile[:r], bound, error))
            for _ in range(steps):
                values.append(self.chain_step(b, values, (step, columns), r))
            result = self.cast(b, values[-1], out_dtype, (step, columns), r)
            b.dma_copy(y[i * step : i * step + r], result.view, engine=self.pick(*QUEUES))
        assert result is not None
        out = self.new_output((rows, columns), out_dtype, result.bound, result.error)
        self.finish_kernel(b, [*(s[0] for s in sources), out])

    def cast(
        self, b: KernelBuilder, value: Value, dtype: np.dtype[Any], shape: tuple[int, int], r: Index
    ) -> Value:
        """A tensor_copy to ``dtype``."""
        if value.dtype == dtype:
            return value
        tile = b.sbuf(shape, dtype)[:r]
        b.tensor_copy(tile, value.view, engine=self.pick("vector", "gpsimd"))
        return Value(tile, value.bound * 1.01, self.rounded(value.error, value.bound, dtype))

    def rounded(self, error: float, bound: float, dtype: np.dtype[Any]) -> float:
        """Error after one rounding to ``dtype``: none if there was none before."""
        if error == 0.0:
            return 0.0
        finest = {float64: float32}.get(dtype, dtype) if not self.native else dtype
        return error + 2 * EPSILON[finest] * (bound + error)

    def chain_step(
        self, b: KernelBuilder, values: list[Value], shape: tuple[int, int], r: Index
    ) -> Value:
        """One more instruction on earlier values."""
        kinds = ["scalar", "scalar", "tensor", "tensor", "activation", "stt", "select", "copy"]
        x = self.pick(*values[-3:])
        other = self.pick(*values)
        kind = self.pick(*kinds)
        dtype = self.pick(float32, float32, x.dtype)
        out = b.sbuf(shape, dtype)[:r]
        exact = [v for v in values if v.error == 0.0]
        if x.bound > 1e3 or other.bound > 1e3 or (kind == "select" and not exact):
            kind = "activation"
        if kind == "scalar":
            op, constant = self.pick("add", "subtract", "multiply", "maximum", "minimum"), 0.75
            reverse = self.draw(st.booleans())
            two = self.draw(st.booleans())
            more = {"operand1": -0.5, "op1": self.pick("add", "multiply")} if two else {}
            b.tensor_scalar(out, x.view, constant, op0=op, reverse0=reverse, **more)
            bound, error = x.bound + 0.75 + 0.5, x.error
            if error:
                error += 4 * EPSILON[float32] * bound
        elif kind == "tensor":
            op = self.pick("add", "subtract", "multiply", "maximum", "minimum")
            b.tensor_tensor(out, x.view, other.view, op=op)
            bound, error = self._combine(op, x, other)
        elif kind == "stt":
            b.scalar_tensor_tensor(
                out, x.view, 0.5, other.view, op0="multiply", op1=self.pick("add", "subtract")
            )
            bound, error = self._combine("add", Value(x.view, x.bound / 2, x.error / 2), other)
        elif kind == "select":
            mask = b.sbuf(shape, self.pick(uint8, bool_, int32))[:r]
            b.tensor_scalar(mask, self.pick(*exact).view, 0.0, op0=self.pick("greater", "less"))
            if x.dtype != dtype:
                x = self.cast(b, x, dtype, shape, r)
            b.tensor_copy(out, x.view)
            b.tensor_copy_predicated(out, 0.25, mask, reverse_pred=self.draw(st.booleans()))
            bound, error = max(x.bound, 0.25), x.error
        elif kind == "copy":
            b.tensor_copy(out, x.view, engine=self.pick("vector", "gpsimd"))
            bound, error = x.bound, x.error
        else:
            bound, error = self._activation(b, out, x)
        return Value(out, bound * 1.01, self.rounded(error, bound, dtype))

    def _combine(self, op: str, x: Value, y: Value) -> tuple[float, float]:
        if op == "multiply":
            bound = x.bound * y.bound
            error = x.bound * y.error + y.bound * x.error + x.error * y.error
        else:
            bound, error = x.bound + y.bound, x.error + y.error
        return bound, error + (2 * EPSILON[float32] * bound if error else 0.0)

    def _activation(self, b: KernelBuilder, out: TileView, x: Value) -> tuple[float, float]:
        # name -> (largest slope, bound of the result from the bound of the argument)
        table: dict[str, tuple[float, Callable[[float], float]]] = {
            "tanh": (1.0, lambda _: 1.0),
            "sigmoid": (0.25, lambda _: 1.0),
            "erf": (1.13, lambda _: 1.0),
            "gelu": (1.2, lambda v: v),
            "gelu_apprx_tanh": (1.2, lambda v: v),
            "silu": (1.1, lambda v: v),
            "softplus": (1.0, lambda v: v + 1),
            "arctan": (1.0, lambda _: 1.6),
            "abs": (1.0, lambda v: v),
            "relu": (1.0, lambda v: v),
        }
        if x.bound <= 3:
            table["exp"] = (25.0, lambda v: float(np.exp(v)))
            table["sin"] = (1.0, lambda _: 1.0)
            table["square"] = (6.0, lambda v: v * v)
        name = self.pick(*table)
        slope, image = table[name]
        b.activation(out, x.view, op=name)
        bound = image(x.bound)
        if name in ("abs", "relu", "square") and x.error == 0.0:
            return bound, 0.0
        return bound, slope * x.error + FUNCTION_ULPS * EPSILON[float32] * bound

    # Reductions -------------------------------------------------------------------------------

    def reduction(self) -> None:
        """Row reductions, their use as row scalars, and sums taken by activation."""
        rows, columns = self.integer(1, 140), self.integer(2, 160)
        x = self.new_input(self.data((rows, columns), float32))
        b = self.builder()
        a = b.param("a", (rows, columns), float32, "in")
        y = b.param("y", (rows, columns), float32, "out")
        s = b.param("s", (rows, 1), float32, "out")
        op = self.pick("add", "maximum", "minimum")
        exact = op != "add"
        total = 2.0 if exact else 2.0 * columns
        slack = 0.0 if exact else 2 * columns * EPSILON[float32] * total
        use_sum = self.draw(st.booleans())
        with b.loop("i", 0, -(-rows // 128)) as i:
            r = minimum(128, rows - i * 128)
            t = b.sbuf((128, columns), float32)
            m = b.sbuf((128, 1), float32)
            e = b.sbuf((128, columns), float32)
            b.dma_copy(t[:r], a[i * 128 : i * 128 + r])
            b.tensor_reduce(m[:r], t[:r], op=op, axis=(1,), negate=self.draw(st.booleans()))
            if use_sum:
                b.activation(e[:r], t[:r], op="tanh", reduce_op="add", reduce_res=m[:r], scale=0.5)
            else:
                b.tensor_scalar(e[:r], t[:r], m[:r], op0=self.pick("add", "subtract", "maximum"))
            b.dma_copy(y[i * 128 : i * 128 + r], e[:r], engine="scalar")
            b.dma_copy(s[i * 128 : i * 128 + r], m[:r], engine="gpsimd")
        if use_sum:
            near = FUNCTION_ULPS * EPSILON[float32]
            e_bound, e_error = 1.0, near
            total, slack = float(columns), columns * near + 2 * columns**2 * EPSILON[float32]
        else:
            e_bound, e_error = total + 2.0, slack + (2 * EPSILON[float32] * total if slack else 0.0)
        out_y = self.new_output((rows, columns), float32, e_bound, e_error)
        out_s = self.new_output((rows, 1), float32, total, slack)
        self.finish_kernel(b, [x, out_y, out_s])

    # Matmul and transpose ---------------------------------------------------------------------

    def matmul(self) -> None:
        """``a.T @ b`` in blocks with tails, evicted through ScalarE or VectorE."""
        m, k, n = self.integer(1, 150), self.integer(1, 200), self.integer(1, 140)
        dtype = self.pick(float32, float32, bfloat16, *([float64] if self.native else []))
        left = self.new_input(self.data((k, m), dtype))
        right = self.new_input(self.data((k, n), dtype))
        accumulate = float64 if dtype == float64 else float32
        b = self.builder()
        a, w = b.param("a", (k, m), dtype, "in"), b.param("w", (k, n), dtype, "in")
        y = b.param("y", (m, n), accumulate, "out")
        tanh = self.draw(st.booleans())
        with b.loop("i", 0, -(-m // 128)) as i:
            r = minimum(128, m - i * 128)
            p = b.psum((128, n), accumulate)
            o = b.sbuf((128, n), accumulate)
            with b.loop("j", 0, -(-k // 128)) as j:
                c = minimum(128, k - j * 128)
                s = b.sbuf((128, 128), dtype)
                v = b.sbuf((128, n), dtype)
                b.dma_copy(s[:c, :r], a[j * 128 : j * 128 + c, i * 128 : i * 128 + r])
                b.dma_copy(v[:c], w[j * 128 : j * 128 + c], engine="gpsimd")
                b.nc_matmul(p[:r], s[:c, :r], v[:c], accumulate=predicate(j, ">", 0))
            if tanh:
                b.activation(o[:r], p[:r], op="tanh", scale=0.125)
            else:
                b.tensor_copy(o[:r], p[:r])
            b.dma_copy(y[i * 128 : i * 128 + r], o[:r], engine="scalar")
        eps = EPSILON[accumulate]
        bound = 4.0 * k
        error = 2 * k * eps * bound
        if tanh:
            bound, error = 1.0, 0.125 * error + 2 * FUNCTION_ULPS * eps
        self.finish_kernel(b, [left, right, self.new_output((m, n), accumulate, bound, error)])

    def transpose(self) -> None:
        """Blocks through TensorE and PSUM; bits are kept."""
        m, n = self.integer(1, 150), self.integer(1, 150)
        dtype = self.pick(float32, bfloat16, float16)
        x = self.new_input(self.data((m, n), dtype))
        b = self.builder()
        a, y = b.param("a", (m, n), dtype, "in"), b.param("y", (n, m), dtype, "out")
        with b.loop("i", 0, -(-m // 128)) as i, b.loop("j", 0, -(-n // 128)) as j:
            r, c = minimum(128, m - i * 128), minimum(128, n - j * 128)
            t = b.sbuf((128, 128), dtype)
            p = b.psum((128, 128), dtype)
            o = b.sbuf((128, 128), dtype)
            b.dma_copy(t[:r, :c], a[i * 128 : i * 128 + r, j * 128 : j * 128 + c])
            b.nc_transpose(p[:c, :r], t[:r, :c])
            b.tensor_copy(o[:c, :r], p[:c, :r])
            b.dma_copy(y[j * 128 : j * 128 + c, i * 128 : i * 128 + r], o[:c, :r])
        self.finish_kernel(b, [x, self.new_output((n, m), dtype, 2.0, 0.0)])

    # Movement ---------------------------------------------------------------------------------

    def movement(self) -> None:
        """A strided, permuted or broadcast copy through SBUF, any dtype, bits kept."""
        p, q, f = self.integer(1, 40), self.integer(1, 6), self.integer(1, 24)
        dtype = self.pick(float32, bfloat16, float16, int32, uint8, bool_, np.dtype(np.int64))
        x = self.new_input(self.data((p, q, f), dtype))
        b = self.builder()
        a = b.param("a", (p, q, f), dtype, "in")
        kind = self.pick("permute", "step", "broadcast", "reverse-roles")
        if kind == "permute":
            view = a.permute(0, 2, 1)
        elif kind == "step":
            view = a[:, :, :: self.integer(1, 3)]
        elif kind == "broadcast":
            view = a[:, 0:1, :].broadcast(1, self.integer(1, 4))
        else:
            view = a.permute(1, 0, 2)
        shape = tuple(int(str(c)) for c in view.shape)
        y = b.param("y", shape, dtype, "out")
        t = b.sbuf(shape, dtype)
        u = b.sbuf(shape, dtype)
        b.dma_copy(t, view, engine=self.pick(*QUEUES))
        b.tensor_copy(u, t, engine=self.pick("vector", "gpsimd"))
        b.dma_copy(y, u, engine=self.pick(*QUEUES))
        self.finish_kernel(b, [x, self.new_output(shape, dtype, 2.0, 0.0)])

    def indirect(self) -> None:
        """A gather of rows, or a scatter-add of rows with repeats."""
        rows, columns, table = self.integer(1, 128), self.integer(1, 32), self.integer(1, 50)
        index = self.random.integers(0, table, (rows, 1)).astype(int32)
        ids = self.new_input(index)
        b = self.builder()
        if self.draw(st.booleans()):
            x = self.new_input(self.data((table, columns), float32))
            i, a = b.param("i", (rows, 1), int32, "in"), b.param("a", (table, columns), float32)
            y = b.param("y", (rows, columns), float32, "out")
            n, t = b.sbuf((rows, 1), int32), b.sbuf((rows, columns), float32)
            b.dma_copy(n, i)
            b.dma_copy(t, a.indexed(n), engine="gpsimd")
            b.dma_copy(y, t)
            self.finish_kernel(b, [ids, x, self.new_output((rows, columns), float32, 2.0, 0.0)])
            return
        x = self.new_input(self.data((rows, columns), float32))
        i, a = b.param("i", (rows, 1), int32, "in"), b.param("a", (rows, columns), float32)
        y = b.param("y", (table, columns), float32, "out")
        n, t = b.sbuf((rows, 1), int32), b.sbuf((rows, columns), float32)
        zero = b.sbuf((table, columns), float32)
        b.dma_copy(n, i)
        b.dma_copy(t, a)
        b.memset(zero, 0.0)
        b.dma_copy(y, zero)
        b.dma_compute(y.indexed(n), t, engine="gpsimd")
        self.finish_kernel(b, [ids, x, self.new_output((table, columns), float32, 256.0, 0.0)])

    # Integers and others ----------------------------------------------------------------------

    def integers(self) -> None:
        """Wrapping arithmetic on GpSimd and bit operations on VectorE, exact."""
        rows, columns = self.integer(1, 128), self.integer(1, 64)
        dtype = self.pick(int32, uint32)
        x = self.new_input(self.data((rows, columns), dtype))
        z = self.new_input(self.data((rows, columns), dtype))
        b = self.builder()
        a, c = b.param("a", (rows, columns), dtype), b.param("c", (rows, columns), dtype)
        y = b.param("y", (rows, columns), dtype, "out")
        tiles = [b.sbuf((rows, columns), dtype) for _ in range(2)]
        b.dma_copy(tiles[0], a)
        b.dma_copy(tiles[1], c, engine="scalar")
        for _ in range(self.integer(1, 6)):
            out = b.sbuf((rows, columns), dtype)
            left, right = self.pick(*tiles), self.pick(*tiles)
            kind = self.pick("exact", "exact scalar", "bits", "shift")
            if kind == "exact":
                op = self.pick("add", "subtract", "multiply")
                b.tensor_tensor(out, left, right, op=op, engine="gpsimd")
            elif kind == "exact scalar":
                op = self.pick("add", "subtract", "multiply")
                b.tensor_scalar(out, left, self.integer(-1000, 1000), op0=op, engine="gpsimd")
            elif kind == "bits":
                op = self.pick("bitwise_and", "bitwise_or", "bitwise_xor")
                b.tensor_tensor(out, left, right, op=op)
            else:
                op = self.pick("left_shift", "right_shift")
                b.tensor_scalar(out, left, self.integer(0, 31), 0xFFFF, op0=op, op1="bitwise_and")
            tiles.append(out)
        b.dma_copy(y, tiles[-1])
        self.finish_kernel(b, [x, z, self.new_output((rows, columns), dtype, 0.0, 0.0)])

    def ramps(self) -> None:
        """iota, affine_select, a scan, max8 and the positions of its values."""
        rows, columns = self.integer(1, 64), self.integer(8, 48)
        x = self.new_input(self.data((rows, columns), float32))
        b = self.builder()
        a = b.param("a", (rows, columns), float32)
        kept = b.param("kept", (rows, columns), float32, "out")
        scan = b.param("scan", (rows, columns), float32, "out")
        top = b.param("top", (rows, 8), float32, "out")
        at = b.param("at", (rows, 8), uint32, "out")
        ramp = b.param("ramp", (rows, columns), int32, "out")
        t, m, r, q = (b.sbuf((rows, columns), float32) for _ in range(4))
        n = b.sbuf((rows, columns), int32)
        v, w = b.sbuf((rows, 8), float32), b.sbuf((rows, 8), uint32)
        b.dma_copy(t, a)
        step, slope = self.integer(-3, 3), self.integer(-5, 5)
        b.iota(n, pattern=((step, columns),), offset=self.integer(-9, 9), channel_multiplier=slope)
        compare = self.pick("greater_equal", "less", "equal")
        b.affine_select(
            m, t, -1.5, pattern=((step, columns),), channel_multiplier=slope, cmp_op=compare
        )
        b.memset(q, 0.5)
        b.tensor_tensor_scan(r, q, t, 0.25, op0="multiply", op1="add")
        b.max8(v, t)
        b.nc_find_index8(w, t, v)
        for view, tile in ((ramp, n), (kept, m), (scan, r), (top, v), (at, w)):
            b.dma_copy(view, tile, engine=self.pick(*QUEUES))
        shape = (rows, columns)
        names = [
            self.new_output(shape, float32, 2.0, 0.0),
            self.new_output(shape, float32, 8.0, 16 * EPSILON[float32]),
            self.new_output((rows, 8), float32, 2.0, 0.0),
            self.new_output((rows, 8), uint32, 0.0, 0.0),
            self.new_output(shape, int32, 0.0, 0.0),
        ]
        self.finish_kernel(b, [x, *names])

    def register_loop(self) -> None:
        """A loop whose bound is loaded from memory, over rows that it doubles."""
        rows, columns = self.integer(1, 40), self.integer(1, 16)
        trips = self.integer(0, rows)
        x = self.new_input(self.data((rows, columns), float32))
        n = self.new_input(np.array([[trips]], int32))
        b = self.builder()
        a, c = b.param("a", (rows, columns), float32), b.param("n", (1, 1), int32)
        y = b.param("y", (rows, columns), float32, "out")
        t = b.sbuf((rows, columns), float32)
        k = b.sbuf((1, 1), int32)
        b.dma_copy(t, a)
        b.dma_copy(y, t)
        b.dma_copy(k, c)
        bound = b.load_register(k)
        with b.loop("i", 0, bound) as i:
            row = b.sbuf((1, columns), float32)
            b.dma_copy(row, a[i : i + 1])
            b.tensor_scalar(row, row, 2.0, op0="multiply")
            b.dma_copy(y[i : i + 1], row)
        self.finish_kernel(b, [x, n, self.new_output((rows, columns), float32, 4.0, 0.0)])

    # Program ----------------------------------------------------------------------------------

    def case(self) -> RandomCase:
        """Up to three kernels as one program."""
        kinds = [
            self.elementwise,
            self.elementwise,
            self.reduction,
            self.matmul,
            self.transpose,
            self.movement,
            self.indirect,
            self.integers,
            self.ramps,
            self.register_loop,
        ]
        for _ in range(self.integer(1, 3)):
            self.pick(*kinds)()
        ordered = sorted(self.buffers, key=lambda buffer: buffer.kind != "input")
        program = TileProgram(
            "random",
            self.target,
            tuple(ordered),
            tuple(self.kernels),
            tuple(self.calls),
            tuple(o.name for o in self.outputs),
        )
        check_program(program)
        tolerances = [o.error for o in self.outputs]
        return RandomCase(program, self.inputs, tolerances)


QUEUES = ("sync", "scalar", "gpsimd")


def random_tile_program(draw: Draw, target: str = "trn2") -> tuple[TileProgram, list[Array]]:
    """A legal program and its inputs; ``draw`` is that of a hypothesis composite strategy."""
    case = Generator(draw, target).case()
    return case.program, case.inputs


@st.composite
def random_case(draw: Draw, target: str | None = None) -> RandomCase:
    """A program with inputs and tolerances, for one target or (None) for trn2 or cpu."""
    chosen = target or draw(st.sampled_from(("trn2", "cpu")))
    return Generator(draw, chosen).case()
