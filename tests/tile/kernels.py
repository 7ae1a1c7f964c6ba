"""Hand-written kernels that the tile and NKI tests share."""

from __future__ import annotations

from trnx.compiler.tile.build import KernelBuilder, predicate, single_kernel_program
from trnx.compiler.tile.expr import minimum
from trnx.compiler.tile.ir import Kernel, TileProgram
from trnx.compiler.tile.legality import check_program
from trnx.compiler.tile.parallel import mark_parallel
from trnx.compiler.tile.place import place
from trnx.compiler.tile.schedule import schedule
from trnx.core.dtypes import bfloat16, bool_, float32, int32, uint32
from trnx.core.source import Source


def line(number: int) -> Source:
    """A user's line that does not move when this file is edited."""
    return Source("model.py", number, "forward")


def finish(kernel: Kernel, target: str = "trn2") -> Kernel:
    """Place, prove and schedule a kernel."""
    return schedule(mark_parallel(place(kernel, target)))


def program(kernel: Kernel, target: str = "trn2") -> TileProgram:
    """A checked program of one kernel."""
    made = single_kernel_program(finish(kernel, target), target)
    check_program(made)
    return made


def softmax(rows: int = 1000, columns: int = 512) -> Kernel:
    """Row softmax with a tail in the rows."""
    b = KernelBuilder("softmax", source=line(1))
    x = b.param("x", (rows, columns), float32, "in")
    y = b.param("y", (rows, columns), float32, "out")
    with b.loop("i", 0, -(-rows // 128)) as i:
        n = minimum(128, rows - i * 128)
        block = slice(i * 128, i * 128 + n)
        with b.at(line(2)):
            t = b.sbuf((128, columns), float32)
            b.dma_copy(t[:n], x[block])
        with b.at(line(3)):
            low = b.sbuf((128, 1), float32)
            b.tensor_reduce(low[:n], t[:n], op="maximum", negate=True)
            total = b.sbuf((128, 1), float32)
            b.activation(t[:n], t[:n], low[:n], reduce_res=total[:n], op="exp", reduce_op="add")
        with b.at(line(4)):
            b.reciprocal(total[:n], total[:n])
            b.tensor_scalar(t[:n], t[:n], total[:n], op0="multiply")
            b.dma_copy(y[block], t[:n])
    return b.finish()


def matmul(m: int = 256, k: int = 300, n: int = 700) -> Kernel:
    """y = x @ w + bias with x transposed on chip, a K loop and a bias repeated over the rows."""
    b = KernelBuilder("linear", source=line(10))
    x = b.param("x", (m, k), float32, "in")
    w = b.param("w", (k, n), float32, "in")
    bias = b.param("bias", (n,), float32, "in")
    y = b.param("y", (m, n), float32, "out")
    with b.at(line(11)), b.loop("i", 0, -(-m // 128)) as i:
        rows = minimum(128, m - i * 128)
        row = slice(i * 128, i * 128 + rows)
        with b.loop("j", 0, -(-n // 512)) as j:
            cols = minimum(512, n - j * 512)
            col = slice(j * 512, j * 512 + cols)
            acc = b.psum((128, 512), float32, "acc")
            with b.loop("kk", 0, -(-k // 128)) as kk:
                depth = minimum(128, k - kk * 128)
                deep = slice(kk * 128, kk * 128 + depth)
                a = b.sbuf((128, 128), float32, "a")
                b.dma_copy(a[:rows, :depth], x[row, deep])
                turned = b.psum((128, 128), float32, "turned")
                b.nc_transpose(turned[:depth, :rows], a[:rows, :depth])
                at = b.sbuf((128, 128), float32, "at")
                b.tensor_copy(at[:depth, :rows], turned[:depth, :rows])
                right = b.sbuf((128, 512), float32, "right")
                b.dma_copy(right[:depth, :cols], w[deep, col])
                b.nc_matmul(
                    acc[:rows, :cols],
                    at[:depth, :rows],
                    right[:depth, :cols],
                    accumulate=predicate(kk, ">", 0),
                )
            with b.at(line(12)):
                spread = b.sbuf((128, 512), float32, "spread")
                b.dma_copy(spread[:rows, :cols], bias[None, col].broadcast(0, rows))
                out = b.sbuf((128, 512), float32, "out")
                b.tensor_tensor(
                    out[:rows, :cols], acc[:rows, :cols], spread[:rows, :cols], op="add"
                )
                b.dma_copy(y[row, col], out[:rows, :cols])
    return b.finish()


def gather(count: int = 200, rows: int = 1000, columns: int = 64) -> Kernel:
    """Rows of a table by index, then added back into a second table by the same index."""
    b = KernelBuilder("gather", source=line(20))
    table = b.param("table", (rows, columns), float32, "in")
    indices = b.param("indices", (count,), int32, "in")
    grads = b.param("grads", (rows, columns), float32, "inout")
    y = b.param("y", (count, columns), float32, "out")
    with b.at(line(21)), b.loop("i", 0, -(-count // 128)) as i:
        n = minimum(128, count - i * 128)
        block = slice(i * 128, i * 128 + n)
        index = b.sbuf((128, 1), int32, "index")
        b.dma_copy(index[:n], indices[block, None])
        t = b.sbuf((128, columns), float32)
        b.dma_copy(t[:n], table.indexed(index[:n]))
        b.dma_copy(y[block], t[:n])
        b.dma_compute(grads.indexed(index[:n]), t[:n])
    return b.finish()


def control() -> Kernel:
    """A register loop, a while loop and run-time offsets."""
    b = KernelBuilder("control", source=line(30))
    data = b.param("data", (64, 256), float32, "in")
    length = b.param("length", (1, 1), int32, "in")
    y = b.param("y", (64, 256), float32, "out")
    with b.at(line(31)):
        bound = b.sbuf((1, 1), int32, "bound")
        b.dma_copy(bound, length)
        one = b.sbuf((1, 1), int32, "one")
        b.memset(one, 1)
        n = b.load_register(bound, "n")
        row = b.sbuf((1, 256), float32, "row")
        with b.loop("r", 0, n) as r:
            b.dma_copy(row, data[r : r + 1])
            b.activation(row, row, scale=0.5, op="tanh")
            b.dma_copy(y[r : r + 1], row)
        flag = b.load_register(bound, "flag")
        with b.while_loop(flag):
            b.tensor_tensor(bound, bound, one, op="subtract")
            b.load_register(bound, into=flag)
    return b.finish()


def masks() -> Kernel:
    """Every instruction kind that softmax, matmul and gather leave out."""
    b = KernelBuilder("masks", source=line(40))
    x = b.param("x", (128, 2, 64), bfloat16, "in")
    y = b.param("y", (128, 64), float32, "out")
    z = b.param("z", (128, 8), uint32, "out")
    with b.at(line(41)):
        t = b.sbuf((128, 2, 64), bfloat16)
        b.dma_copy(t, x)
        f = b.sbuf((128, 64), float32)
        b.tensor_copy(f, t[:, 0], engine="scalar")
        ramp = b.sbuf((128, 64), int32, "ramp")
        b.iota(ramp, pattern=[[3, 64]], offset=5, channel_multiplier=2)
        b.tensor_tensor(ramp, ramp, ramp, op="multiply")
        b.tensor_scalar(ramp, ramp, 7, op0="add")
        b.tensor_scalar(ramp, ramp, 3, op0="right_shift", op1="bitwise_xor", operand1=1)
        mask = b.sbuf((128, 64), bool_, "mask")
        b.tensor_tensor(mask, ramp, ramp[:, 0:1].broadcast(1, 64), op="greater")
        b.tensor_copy_predicated(f, 0.0, mask)
        b.tensor_copy_predicated(f, float("-inf"), ramp, reverse_pred=True)
    with b.at(line(42)):
        b.affine_select(
            f,
            f,
            -3.0e38,
            pattern=[[-1, 64]],
            channel_multiplier=1,
            cmp_op="greater_equal",
        )
        total = b.sbuf((128, 64), float32, "total")
        b.tensor_tensor_scan(total, f, f, 0.0, op0="multiply", op1="add")
        b.scalar_tensor_tensor(f, total, 0.5, f, op0="multiply", op1="subtract", reverse1=True)
        best = b.sbuf((128, 8), float32, "best")
        b.max8(best, f)
        where = b.sbuf((128, 8), uint32, "where")
        b.nc_find_index8(where, f, best)
        summed = b.sbuf((1, 64), float32, "summed")
        b.tensor_partition_reduce(summed, f, op="add")
        b.activation(f, f, bias=1.0, op="gelu")
        pairs = b.sbuf((128, 2), float32, "pairs")
        b.tensor_reduce(pairs, t, op="add", axis=(2,))
        b.dma_copy(y, f)
        b.dma_copy(z, where)
        b.dma_copy(y[0:1], summed)
        b.dma_copy(y[1:33, 0:64:2], f[0:32, 0:64:2], engine="sync")
    return b.finish()


ALL = {
    "softmax": softmax,
    "matmul": matmul,
    "gather": gather,
    "control": control,
    "masks": masks,
}
