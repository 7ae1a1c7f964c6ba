"""Addresses: no two live tiles meet, capacity is used up before it is refused, copies rotate."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tile import kernels
from tests.tile.test_schedule import races, shuffled_kernel
from trnx.compiler.targets import CPU, TRN2, Target
from trnx.compiler.tile.build import KernelBuilder
from trnx.compiler.tile.ir import Kernel, Tile, tiles
from trnx.compiler.tile.legality import check_kernel
from trnx.compiler.tile.parallel import mark_parallel
from trnx.compiler.tile.place import ALIGNMENT, place
from trnx.compiler.tile.schedule import schedule
from trnx.core.dtypes import float32
from trnx.core.errors import TileError


def small(capacity: int) -> Target:
    """trn2 with so many bytes of SBUF per partition."""
    return replace(TRN2, sbuf_usable_bytes=capacity)


def ends(tile: Tile) -> int:
    """First byte after all copies."""
    assert tile.address is not None
    return tile.address[1] + tile.copies * tile.free_bytes


def chain(length: int, width: int, in_loop: bool = False) -> Kernel:
    """t1 = f(t0), t2 = f(t1), … so that two tiles are alive at a time."""
    b = KernelBuilder("chain", source=kernels.line(1))
    x = b.param("x", (128, width), float32, "in")
    y = b.param("y", (128, width), float32, "out")

    def body() -> None:
        with b.at(kernels.line(2)):
            tile = b.sbuf((128, width), float32)
            b.dma_copy(tile, x)
            for _ in range(length):
                following = b.sbuf((128, width), float32)
                b.activation(following, tile, op="tanh")
                tile = following
            b.dma_copy(y, tile)

    if in_loop:
        with b.loop("i", 0, 4):
            body()
    else:
        body()
    return b.finish()


def test_tiles_have_their_own_memory_while_it_lasts() -> None:
    """Sharing makes engines wait, so it starts only when SBUF is full."""
    roomy = tiles(place(chain(4, 1000), "trn2"))
    starts = sorted(t.address[1] for t in roomy.values() if t.address)
    assert len(set(starts)) == 5
    tight = tiles(place(chain(4, 20000), "trn2"))
    assert len({t.address for t in tight.values()}) == 2
    assert all(ends(t) <= TRN2.sbuf_usable_bytes for t in tight.values())


def test_addresses_are_aligned() -> None:
    """Every tile starts on a multiple of 64 bytes."""
    b = KernelBuilder("k")
    for size in (1, 3, 17, 100):
        b.memset(b.sbuf((4, size), float32), 0.0)
    for tile in tiles(place(b.finish(), "trn2")).values():
        assert tile.address is not None
        assert tile.address[0] == 0 and tile.address[1] % ALIGNMENT == 0


def test_copies_for_tiles_that_dma_touches_in_loops() -> None:
    """Loaded and stored tiles rotate; others and those outside loops do not."""
    placed = tiles(place(chain(3, 100, in_loop=True), "trn2"))
    assert {n: t.copies for n, t in placed.items()} == {"t0": 2, "t1": 1, "t2": 1, "t3": 2}
    assert all(t.copies == 1 for t in tiles(place(chain(3, 100), "trn2")).values())
    assert all(t.copies == 1 for t in tiles(place(chain(3, 100, in_loop=True), CPU)).values())


def test_copies_go_when_capacity_does() -> None:
    """The second copies are given up before the kernel is refused."""
    kernel = chain(1, 1000, in_loop=True)
    sizes = [tiles(place(kernel, small(room))) for room in (16064, 12032, 8064)]
    assert [sorted(t.copies for t in found.values()) for found in sizes] == [[2, 2], [1, 2], [1, 1]]
    with pytest.raises(TileError):
        place(kernel, small(8000))


def test_overflow_names_tiles_line_and_remedy() -> None:
    """One sentence: needed, available, the widest tiles; the user's line; what to do."""
    with pytest.raises(TileError) as caught:
        place(chain(1, 40000), "trn2")
    assert str(caught.value) == (
        "kernel 'chain' needs 320,000 B of SBUF per partition where trn2 has 212,984 B: "
        "t0 f32[128, 40000] 160,000 B, t1 f32[128, 40000] 160,000 B (at model.py:2 (forward)). "
        "Split the free axis of the widest tile into a loop over smaller tiles."
    )
    b = KernelBuilder("banks", source=kernels.line(5))
    t = b.sbuf((128, 128), float32)
    b.memset(t, 1.0)
    held = [b.psum((128, 512), float32) for _ in range(9)]
    for p in held:
        b.nc_transpose(p[:, 0:128], t)
    for p in held:
        b.tensor_copy(t, p[:, 0:128])
    with pytest.raises(TileError, match=r"needs 18,432 B of PSUM .* 16,384 B: .* and 5 more"):
        place(b.finish(), "trn2")


def test_psum_tiles_start_at_banks() -> None:
    """Each PSUM tile has banks of its own; whole banks rotate in loops."""
    placed = tiles(place(kernels.matmul(), "trn2"))
    for tile in placed.values():
        if tile.memory == "psum":
            assert tile.address is not None and tile.address[1] % TRN2.psum_bank_bytes == 0
    assert placed["acc"].copies == 2 and placed["turned"].copies == 1


@given(shuffled_kernel(), st.integers(0, 3))
def test_sharing_is_safe(kernel: Kernel, spare: int) -> None:
    """With hardly any memory, tiles share it, nothing live collides and edges keep the order."""
    room = 64
    while True:
        try:
            placed = place(kernel, small(room + 64 * spare))
            break
        except TileError:
            room += 64
    made = schedule(mark_parallel(placed))
    check_kernel(made, "trn2")
    assert races(made) == []


@pytest.mark.parametrize("name", kernels.ALL)
def test_placing_is_idempotent_and_deterministic(name: str) -> None:
    """The same kernel gets the same addresses, also when it has some."""
    kernel = kernels.ALL[name]()
    once = place(kernel, "trn2")
    assert place(kernels.ALL[name](), "trn2") == once
    assert place(once, "trn2") == once
