"""Parallel loops: same results on any number of threads, from many callers, after a fork."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest

from tests.host.native import run_native
from tests.sim.programs import compile_program
from trnx.compiler.host import HostOptions, load
from trnx.compiler.host import compile_program as compile_native
from trnx.compiler.tile.build import KernelBuilder
from trnx.compiler.tile.expr import minimum
from trnx.compiler.tile.ir import For, TileProgram, walk
from trnx.core.dtypes import float32

ROWS, COLUMNS = 3000, 700


def softmax_program(rows: int = ROWS, columns: int = COLUMNS) -> TileProgram:
    """Row softmax in blocks of 128 rows."""

    def write(b: KernelBuilder) -> None:
        x = b.param("x", (rows, columns), float32, "in")
        y = b.param("y", (rows, columns), float32, "out")
        with b.loop("i", 0, -(-rows // 128)) as i:
            r = minimum(128, rows - i * 128)
            t, e = b.sbuf((128, columns), float32), b.sbuf((128, columns), float32)
            top, total, inverse = (b.sbuf((128, 1), float32) for _ in range(3))
            b.dma_copy(t[:r], x[i * 128 : i * 128 + r])
            b.tensor_reduce(top[:r], t[:r], op="maximum", axis=(1,), negate=True)
            b.activation(
                e[:r], t[:r], bias=top[:r], reduce_res=total[:r], op="exp", reduce_op="add"
            )
            b.reciprocal(inverse[:r], total[:r])
            b.tensor_scalar(e[:r], e[:r], inverse[:r], op0="multiply")
            b.dma_copy(y[i * 128 : i * 128 + r], e[:r])

    program = compile_program(write)
    loops = [s for s in walk(program.kernels[0].body) if isinstance(s, For)]
    assert loops[0].parallel
    return program


def softmax(x: np.ndarray) -> np.ndarray:
    """The same in f64."""
    e = np.exp(x.astype(np.float64) - x.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
def test_any_number_of_threads(threads: int) -> None:
    """Every row is done once, whoever does it; repeated calls reuse the workers."""
    program = softmax_program()
    x = np.random.default_rng(threads).standard_normal((ROWS, COLUMNS)).astype(np.float32)
    first = run_native(program, [x], threads=threads)[0]
    np.testing.assert_allclose(first, softmax(x), rtol=2e-6)
    for _ in range(5):
        np.testing.assert_array_equal(run_native(program, [x], threads=threads)[0], first)


def test_concurrent_callers() -> None:
    """Regions of several threads at once: one has the pool, the others work alone."""
    program = softmax_program()
    native = load(compile_native(program, HostOptions(threads=3)))
    x = np.random.default_rng(0).standard_normal((ROWS, COLUMNS)).astype(np.float32)
    expected = softmax(x)
    wrong: list[int] = []

    def call(number: int) -> None:
        for _ in range(6):
            y = np.empty_like(x)
            native([x.ctypes.data, y.ctypes.data])
            if not np.allclose(y, expected, rtol=2e-6, atol=0):
                wrong.append(number)

    callers = [threading.Thread(target=call, args=(n,)) for n in range(5)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert wrong == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_after_fork() -> None:
    """A child starts workers of its own; a process may end while its workers wait."""
    code = """
        import os, sys
        import numpy as np
        from tests.host.test_pool import COLUMNS, ROWS, softmax, softmax_program
        from trnx.compiler.host import HostOptions, compile_program, load
        native = load(compile_program(softmax_program(), HostOptions(threads=2)))
        x = np.random.default_rng(1).standard_normal((ROWS, COLUMNS)).astype(np.float32)
        def check():
            y = np.empty_like(x)
            native([x.ctypes.data, y.ctypes.data])
            np.testing.assert_allclose(y, softmax(x), rtol=2e-6)
        check()
        child = os.fork()
        if child == 0:
            check()
            check()
            os._exit(0)
        check()
        assert os.waitpid(child, 0)[1] == 0
        print("done")
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0 and done.stdout == "done\n", done.stderr


def test_small_work_stays_on_the_caller() -> None:
    """Below the threshold the loop runs inline: same results, and no worker is needed."""
    program = softmax_program(rows=300, columns=8)
    x = np.random.default_rng(2).standard_normal((300, 8)).astype(np.float32)
    np.testing.assert_allclose(run_native(program, [x], threads=4)[0], softmax(x), rtol=2e-6)
