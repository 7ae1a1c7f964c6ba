"""trnx under the names that the shared file of public problem reports uses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

import trnx
from trnx import config, lax, nki, nn, random
from trnx import numpy as xp
from trnx.core import tree
from trnx.testing import count_compiles as count_compiles
from trnx.testing import explain_recompiles as explain_recompiles

jit, grad, vmap, jvp = trnx.jit, trnx.grad, trnx.vmap, trnx.jvp
scan, while_loop, softmax = lax.scan, lax.while_loop, nn.softmax
asarray, from_dlpack, device_put = xp.asarray, trnx.from_dlpack, trnx.device_put
segment_sum = nn.segment_sum

NAME = "trnx"  # word the error texts must contain
DEVICE = BACKEND = "neuron"
MAX_BUCKETS = 4  # buckets allowed for lengths 17..64
CACHE_ENV = "TRNX_CACHE_DIR"
CACHE_SETUP = "import trnx"


def attention(q: Any, k: Any, v: Any, mask: Any) -> Any:
    """Attention of ``[batch, length, heads, features]`` with a mask that is True where to look."""
    return nn.dot_product_attention(q, k, v, mask=mask)


def normal(seed: int, shape: Sequence[int]) -> Any:
    """Normal numbers of a seed."""
    return random.normal(random.key(seed), shape)


def ir_text(function: Callable[..., Any], *args: Any) -> str:
    """The traced program as text."""
    return trnx.jit(function).lower(*args).as_text()


def dynamic(function: Callable[..., Any]) -> Callable[..., Any]:
    """jit with bucketing of every size."""
    return trnx.jit(function, dynamic=True)


def device_jit(function: Callable[..., Any]) -> Callable[..., Any]:
    """jit through the tile compiler: the simulator's result, which the host's must equal."""
    jitted = trnx.jit(function)

    def call(*args: Any) -> Any:
        native, structure = tree.flatten(jitted(*args))
        simulated = jitted.lower(*args).simulate()
        assert not simulated.findings, [str(finding) for finding in simulated.findings]
        for ours, theirs in zip(simulated.outputs, native, strict=True):
            np.testing.assert_allclose(ours, np.asarray(theirs), rtol=1e-5)
        return tree.unflatten(structure, [xp.asarray(output) for output in simulated.outputs])

    return call


def debug_nans() -> AbstractContextManager[None]:
    """Raise where a NaN is made."""
    return config.debug_nans(True)


def disable_jit() -> AbstractContextManager[None]:
    """Run jitted functions operation by operation."""
    return config.disable_jit(True)


# ---- a tiled kernel: blocks in, blocks out, written in NKI and run on the simulator


class Block:
    """Stands for a block on chip while a kernel is written down as NKI statements.

    Args:
        lines: statements of the kernel so far.
        name: the tile that holds the block.
        shape: sizes of the block; the array may end inside of it.
    """

    def __init__(self, lines: list[str], name: str, shape: Sequence[int]) -> None:
        self.lines = lines
        self.name = name
        self.shape = tuple(shape)

    def __getitem__(self, index: Any) -> Block:
        assert index is Ellipsis
        return self

    def __setitem__(self, index: Any, value: Block) -> None:
        assert index is Ellipsis and value.shape == self.shape
        self.lines.append(f"nisa.tensor_copy(dst={self.name}, src={value.name})")

    def sum(self, axis: int, keepdims: bool) -> Block:
        """Sum over the free axis of the whole block, padding included."""
        assert axis == 1 and keepdims
        out = Block(self.lines, f"sum{len(self.lines)}", (self.shape[0], 1))
        self.lines += [
            f"{out.name} = nl.ndarray({out.shape}, dtype=x.dtype, buffer=nl.sbuf)",
            f"nisa.tensor_reduce(dst={out.name}, op=nl.add, data={self.name}, axis=1)",
        ]
        return out


def _part(shape: Sequence[int], block: Sequence[int], at: Sequence[int]) -> tuple[str, str]:
    """(index into the array, index into the tile) of the part of a block that exists."""
    starts = [place * size for place, size in zip(at, block, strict=True)]
    counts = [min(b, n - s) for b, n, s in zip(block, shape, starts, strict=True)]
    outside = ", ".join(f"{s}:{s + c}" for s, c in zip(starts, counts, strict=True))
    return outside, ", ".join(f"0:{count}" for count in counts)


def tiled(
    kernel: Callable[[Block, Block], None],
    x: Any,
    out_shape: Sequence[int],
    grid: Sequence[int],
    in_block: Sequence[int],
    out_block: Sequence[int],
    index: Callable[..., Sequence[int]],
) -> np.ndarray[Any, Any]:
    """Run a kernel over blocks on the simulator, which poisons what lies outside the array.

    Args:
        kernel: `(input block, output block) -> None`, reads and writes whole blocks.
        x: array of two axes.
        out_shape: shape of the result.
        grid: number of program instances per grid axis.
        in_block: shape of the input blocks.
        out_block: shape of the output blocks.
        index: grid position to block position.
    """
    lines: list[str] = []
    for position in np.ndindex(*grid):
        number = len(lines)
        source = Block(lines, f"block{number}", in_block)
        target = Block(lines, f"out{number}", out_block)
        place = index(*position)
        for tile in (source, target):
            lines.append(f"{tile.name} = nl.ndarray({tile.shape}, dtype=x.dtype, buffer=nl.sbuf)")
        outside, inside = _part(x.shape, in_block, place)
        lines.append(f"nisa.dma_copy(dst={source.name}[{inside}], src=x[{outside}])")
        kernel(source, target)
        outside, inside = _part(out_shape, out_block, place)
        lines.append(f"nisa.dma_copy(dst=y[{outside}], src={target.name}[{inside}])")
    text = "\n    ".join(
        [
            "import nki\nimport nki.isa as nisa\nimport nki.language as nl\n\n\n@nki.jit",
            f"y = nl.ndarray({tuple(out_shape)}, dtype=x.dtype, buffer=nl.shared_hbm)",
            *lines,
            "return y\n",
        ]
    ).replace("@nki.jit\n", "@nki.jit\ndef blocks(x):\n", 1)
    result = nki.simulate(nki.from_source(text)).run(x)
    (output,) = result.outputs
    return output
