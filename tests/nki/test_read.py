"""The NKI-compatible front end: hand-written kernels, and errors with line and remedy."""

from __future__ import annotations

import textwrap
from typing import Any

import numpy as np
import pytest

from tests.tile import kernels
from trnx.compiler.nki.read import TensorType, read_kernel, read_kernels
from trnx.compiler.sim import simulate
from trnx.compiler.tile.build import single_kernel_program
from trnx.compiler.tile.ir import For, Kernel, instructions, walk
from trnx.core.dtypes import bool_, float32, int32
from trnx.core.errors import ParseError, UnsupportedError

HEAD = """
import nki
import nki.isa as nisa
import nki.language as nl

"""


def read(body: str, *, unroll: bool = False, **arguments: Any) -> Kernel:
    """The kernel ``body`` defines, for float32 arguments of the given shapes."""
    types = {
        name: TensorType(value, np.dtype(float32)) if isinstance(value, tuple) else value
        for name, value in arguments.items()
    }
    text = HEAD + textwrap.dedent(body)
    return read_kernel(text, types, file="mine.py", unroll=unroll).kernel


def run(kernel: Kernel, *inputs: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
    """Outputs on the simulator, which must find nothing wrong."""
    program = single_kernel_program(kernels.finish(kernel), "trn2")
    result = simulate(program, list(inputs))
    assert not result.findings, [str(f) for f in result.findings]
    return result.outputs


def test_matmul_as_people_write_it() -> None:
    """Constants, shape unpacking, a helper, // loops, keyword order, .shape of a view."""
    kernel = read(
        """
        TILE_K = nl.tile_size.pmax

        def load(source, rows, cols):
            tile = nl.ndarray((rows, cols), dtype=source.dtype, buffer=nl.sbuf)
            nisa.dma_copy(src=source, dst=tile)
            return tile

        @nki.jit
        def product(lhsT, rhs):
            K, M = lhsT.shape
            K_, N = rhs.shape
            assert K == K_, "contraction sizes differ"
            result = nl.ndarray((M, N), dtype=nl.float32, buffer=nl.shared_hbm)
            acc = nl.ndarray((M, N), dtype=nl.float32, buffer=nl.psum)
            for i in nl.affine_range(K // TILE_K):
                a = load(lhsT[i * TILE_K : (i + 1) * TILE_K, :], TILE_K, M)
                b = load(rhs[nl.ds(i * TILE_K, TILE_K), :], TILE_K, N)
                nisa.nc_matmul(dst=acc[...], stationary=a, moving=b, accumulate=(i > 0))
            out = nl.ndarray((M, N), dtype=nl.float32)
            nisa.tensor_copy(out, acc)
            nisa.dma_copy(result, out)
            return result
        """,
        lhsT=(256, 64),
        rhs=(256, 96),
    )
    assert sum(isinstance(s, For) for s in walk(kernel.body)) == 1
    rng = np.random.default_rng(1)
    a, b = (rng.integers(-4, 5, shape).astype(np.float32) for shape in ((256, 64), (256, 96)))
    (got,) = run(kernel, a, b)
    assert np.array_equal(got, a.T @ b)


def test_one_dimensional_tensors_and_tails() -> None:
    """A DMA takes the tile's shape when counts agree; min() tails become expressions."""
    kernel = read(
        """
        @nki.jit
        def halve(x):
            (n,) = x.shape
            y = nl.ndarray((n,), dtype=x.dtype, buffer=nl.shared_hbm)
            for i in range((n + 127) // 128):
                rows = min(128, n - i * 128)
                t = nl.ndarray((128, 1), dtype=x.dtype, buffer=nl.sbuf)
                nisa.dma_copy(dst=t[0:rows], src=x[i * 128 : i * 128 + rows])
                nisa.activation(dst=t[:rows, :], op=nl.copy, data=t[:rows, :], scale=0.5)
                nisa.dma_copy(dst=y[i * 128 : i * 128 + rows], src=t[0:rows, 0:1])
            return y
        """,
        x=(300,),
    )
    x = np.arange(300, dtype=np.float32)
    (got,) = run(kernel, x)
    assert np.array_equal(got, x / 2)


TWO_WAYS = """
@nki.jit
def alternate(x):
    y = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    scale = 1.0
    for i in range(4):
        t = nl.ndarray((32, 8), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=t, src=x[32 * i : 32 * i + 32, :])
        if i % 2 == 0:
            nisa.tensor_scalar(dst=t, data=t, op0=nl.multiply, operand0=scale)
        else:
            nisa.tensor_scalar(dst=t, data=t, op0=nl.add, operand0=-1.0)
        scale = scale * 2
        nisa.dma_copy(dst=y[32 * i : 32 * i + 32, :], src=t)
    return y
"""


def test_unrolled_reading_runs_python() -> None:
    """Loops that ``if`` and Python values depend on are refused as loops and run unrolled."""
    with pytest.raises(UnsupportedError, match=r"'if' on a loop index \(at mine.py:14 \(alternate"):
        read(TWO_WAYS, x=(128, 8))
    kernel = read(TWO_WAYS, unroll=True, x=(128, 8))
    assert not any(isinstance(s, For) for s in walk(kernel.body))
    x = np.ones((128, 8), np.float32)
    (got,) = run(kernel, x)
    assert np.array_equal(got[::32, 0], [1.0, 0.0, 4.0, 0.0])


def test_views_chain() -> None:
    """permute, reshape, broadcast, expand_dim, slice, select and ap of tiles and tensors."""
    kernel = read(
        """
        @nki.jit
        def views(x):
            y = nl.ndarray((4, 6), dtype=x.dtype, buffer=nl.shared_hbm)
            t = nl.ndarray((4, 2, 3), dtype=x.dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=t, src=x.reshape((4, 2, 3)))
            u = nl.ndarray((4, 3, 2), dtype=x.dtype, buffer=nl.sbuf)
            nisa.tensor_copy(dst=u, src=t.permute((0, 2, 1)))
            v = nl.ndarray((4, 6), dtype=x.dtype, buffer=nl.sbuf)
            nisa.tensor_copy(dst=v, src=u.reshape((4, 6)))
            one = t.select(1, 0).slice(1, 0, 1).expand_dim(1).broadcast(2, 6)
            nisa.tensor_tensor(dst=v, data1=v, data2=one.reshape((4, 6)), op=nl.add)
            nisa.tensor_tensor(dst=v, data1=v, data2=t.ap([[6, 4], [0, 6]], offset=5), op=nl.add)
            nisa.dma_copy(dst=y.ap([[6, 4], [1, 6]]), src=v)
            return y
        """,
        x=(4, 6),
    )
    x = np.arange(24, dtype=np.float32).reshape(4, 6)
    (got,) = run(kernel, x)
    turned = x.reshape(4, 2, 3).transpose(0, 2, 1).reshape(4, 6)
    assert np.array_equal(got, turned + x[:, 0:1] + x[:, 5:6])


def test_zeros_tuples_and_lists() -> None:
    """nl.zeros, lists of tiles made and used at reading time, tuple returns."""
    text = """
    @nki.jit
    def parts(x):
        a = nl.ndarray((8, 4), dtype=x.dtype, buffer=nl.shared_hbm)
        b = nl.ndarray((8, 4), dtype=x.dtype, buffer=nl.shared_hbm)
        tiles = []
        for out in (a, b):
            tile = nl.zeros((8, 4), dtype=x.dtype, buffer=nl.sbuf)
            tiles.append(tile)
        nisa.dma_copy(dst=tiles[1], src=x)
        nisa.dma_copy(dst=a, src=tiles[0])
        nisa.dma_copy(dst=b, src=tiles[1])
        return b, a
    """
    types = {"x": TensorType((8, 4), np.dtype(float32))}
    made = read_kernel(HEAD + textwrap.dedent(text), types)
    assert made.returns == ("b", "a")
    x = np.full((8, 4), 3.0, np.float32)
    a, b = run(made.kernel, x)
    assert not a.any() and np.array_equal(b, x)


def test_written_arguments_are_inout() -> None:
    """A kernel that writes its argument declares it so."""
    kernel = read(
        """
        def kernel(x):
            t = nl.ndarray((8, 4), dtype=x.dtype, buffer=nl.sbuf)
            nisa.memset(dst=t, value=2.0)
            nisa.dma_copy(dst=x, src=t)
            return x
        """,
        x=(8, 4),
    )
    assert [p.role for p in kernel.params] == ["inout"]


def test_bool_alias_and_bool_dtype() -> None:
    """``bool8``, which the printer writes, and ``nl.bool_`` are bool tiles; uint8 is not."""
    (kernel,) = read_kernels(
        HEAD
        + textwrap.dedent(
            """
            bool8 = nl.uint8

            @nki.jit
            def flags(x):
                assert x.shape == (4, 4)
                assert x.dtype == bool8
                a = nl.ndarray((4, 4), dtype=nl.bool_, buffer=nl.sbuf)
                b = nl.ndarray((4, 4), dtype=nl.uint8, buffer=nl.sbuf)
                nisa.dma_copy(dst=a, src=x)
                nisa.tensor_copy(dst=b, src=a)
                return None
            """
        )
    )
    dtypes = [s.tile.dtype for s in walk(kernel.body) if hasattr(s, "tile")]
    assert kernel.params[0].dtype == bool_ and dtypes == [bool_, np.dtype(np.uint8)]


def test_sources_are_lines_of_the_file() -> None:
    """Instructions carry the line of the NKI source."""
    kernel = read(
        """
        def kernel(x):
            t = nl.ndarray((8, 4), dtype=x.dtype, buffer=nl.sbuf)
            nisa.dma_copy(dst=t, src=x)
        """,
        x=(8, 4),
    )
    (copy,) = instructions(kernel)
    assert str(copy.source) == "mine.py:9 (kernel)"


def kernel_of(statements: str) -> str:
    """A kernel with argument x [128, 64] and tile t around some statements."""
    lines = "\n".join(f"    {line}" for line in statements.split("\n"))
    return (
        "def kernel(x):\n    t = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.sbuf)\n"
        f"    nisa.dma_copy(dst=t, src=x)\n{lines}\n"
    )


PSUM = "p = nl.ndarray((64, 64), dtype=nl.float32, buffer=nl.psum)\n"
ERRORS = {
    "unknown name": ("nisa.tensor_copy(dst=t, src=u)", "name 'u' is not defined"),
    "unknown instruction": ("nisa.exponential(dst=t, src=t)", "nisa.exponential is not supported"),
    "unknown argument": ("nisa.tensor_copy(dst=t, source=t)", "has no argument 'source'"),
    "language operation": ("y = nl.add(t, t)", "nl.add() of tensors"),
    "load": ("y = nl.load(x)", "nl.load is not supported"),
    "while": ("while True:\n    pass", "While statements"),
    "carried value": (
        "n = 0\nfor i in range(4):\n    n = n + 1",
        "'n' changes from one iteration to the next",
    ),
    "if on index": ("for i in range(4):\n    if i > 2:\n        pass", "'if' on a loop index"),
    "accumulate": (
        PSUM + "nisa.nc_matmul(dst=p, stationary=t, moving=t)",
        "nc_matmul without accumulate",
    ),
    "transpose mode": (
        PSUM + "nisa.nc_matmul(dst=p, stationary=t, moving=t, accumulate=False, is_transpose=True)",
        "nisa.nc_matmul with is_transpose=True",
    ),
    "scratch": ("y = nl.ndarray((4, 4), dtype=nl.float32, buffer=nl.hbm)", "a tensor in hbm"),
    "address": (
        "y = nl.ndarray((4, 4), dtype=nl.float32, buffer=nl.sbuf, address=(0, 0))",
        "an address",
    ),
    "float of index": ("for i in range(4):\n    y = float(i)", "float() of a loop index"),
    "division of index": ("for i in range(4):\n    y = i / 2", "Div on a loop index"),
    "list by index": (
        "ts = [t, t]\nfor i in range(2):\n    nisa.memset(dst=ts[i], value=0.0)",
        "a list indexed by a loop index",
    ),
    "register sum": (
        "r = nisa.register_alloc(1)\nnisa.register_move(r, r + 1)",
        "arithmetic on a register",
    ),
    "register range": (
        "r = nisa.register_alloc(1)\nfor i in range(r):\n    pass",
        "range() of a register",
    ),
    "returned tile": ("return t", "the kernel returns something else than HBM tensors"),
    "failed assertion": ("assert x.shape[0] == 64, 'bad'", "assertion failed: bad"),
    "engine alone": (
        "nisa.dma_copy(dst=t, src=x, engine=nisa.engine.scalar)",
        "engine without dge_mode",
    ),
    "wrong enum": ("nisa.memset(dst=t, value=0.0, engine=nisa.engine.pool)", "no member 'pool'"),
    "comprehension": ("ts = [t for i in range(2)]", "ListComp expressions"),
    "slice assignment": ("t[0:4] = 0", "an assignment to a slice"),
    "reduce command": (
        "nisa.activation(dst=t, op=nl.exp, data=t, reduce_op=nl.add, reduce_res=t)",
        "activation with reduce_cmd idle",
    ),
    "partition stride": (
        "nisa.memset(dst=t.ap([[128, 64], [1, 64]]), value=0.0)",
        "the partition stride 128 of tile 't'",
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors_name_line_and_remedy(name: str) -> None:
    """Unsupported source is one error: cause, the kernel's line, a remedy."""
    statements, expected = ERRORS[name]
    with pytest.raises(UnsupportedError) as caught:
        read(kernel_of(statements), x=(128, 64))
    text = str(caught.value)
    assert expected in text and text.startswith("NKI kernel: ")
    assert "(at mine.py:" in text and text.endswith(".")


def test_other_errors() -> None:
    """Syntax errors, missing types, unknown kernels."""
    with pytest.raises(ParseError, match=r"\(at mine.py:6"):
        read("def kernel(x)\n    pass", x=(4,))
    with pytest.raises(UnsupportedError, match="argument 'x' of kernel has no type"):
        read("def kernel(x):\n    pass")
    with pytest.raises(UnsupportedError, match="found 2 kernels"):
        read("def a(x):\n    pass\n\ndef b(x):\n    pass", x=(4,))
    with pytest.raises(UnsupportedError, match=r"'\*' or '/' in the signature"):
        read("def kernel(*x):\n    pass")


def test_register_loops_read() -> None:
    """fori_loop and while_loop with their registers give the kernel written by the builder."""
    kernel = kernels.control()
    program = kernels.program(kernel)
    data = np.linspace(-1, 1, 64 * 256, dtype=np.float32).reshape(64, 256)
    length = np.array([[5]], np.int32)
    result = simulate(program, [data, length])
    assert [f.kind for f in result.findings] == ["output"]
    assert np.allclose(result.outputs[0][:5], np.tanh(data[:5] / 2), rtol=1e-6, atol=1e-7)
    assert program.kernels[0].params[1].dtype == int32
