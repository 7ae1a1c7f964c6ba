"""The target table: derived figures against published ones, and the generated page."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from trnx.compiler.targets import SOURCES, TARGETS, Target, render_markdown, target

PAGE = Path(__file__).resolve().parents[2] / "docs" / "targets.md"


def test_page_is_current() -> None:
    """docs/targets.md is what the table renders to."""
    assert PAGE.read_text(encoding="utf-8") == render_markdown()


def test_every_number_names_a_known_source() -> None:
    """Sources are keys of SOURCES; only the name itself needs none."""
    for item in fields(Target):
        keys = [k.strip() for k in item.metadata["source"].split(",") if k.strip()]
        assert keys or item.name == "name", item.name
        assert set(keys) <= set(SOURCES), item.name


@pytest.mark.parametrize(
    ("name", "mebibytes", "tflops"), [("trn1", 24, 92), ("trn2", 28, 79), ("trn3", 32, 79)]
)
def test_published_totals_follow(name: str, mebibytes: int, tflops: int) -> None:
    """SBUF per core and dense bf16 TFLOPS of the architecture guides follow from the row."""
    row = target(name)
    assert row.sbuf_bytes == mebibytes * 2**20
    assert row.psum_bytes == 2 * 2**20
    peak = 2 * row.matmul_max_contract * row.matmul_max_stationary * row.tensor_clock_ghz / 1e3
    assert round(peak) == tflops


@pytest.mark.parametrize(("name", "gigabytes"), [("trn1", 272), ("trn2", 368), ("trn3", 528)])
def test_dma_planning_bandwidth(name: str, gigabytes: int) -> None:
    """16 engines at the planning rate give the published per-core figure."""
    assert target(name).dma_bytes_per_ns == gigabytes


def test_cpu_is_the_only_native_64_bit_target() -> None:
    """f64 arithmetic exists on cpu alone; 64-bit integers can be moved everywhere."""
    assert [n for n, t in TARGETS.items() if "f64" in t.compute_dtypes] == ["cpu"]
    assert all({"i64", "u64"} <= set(t.tile_dtypes) for t in TARGETS.values())


def test_one_bank_of_columns() -> None:
    """512 fp32 (or f64 on cpu) columns fill one PSUM bank."""
    assert [TARGETS[n].matmul_columns() for n in ("trn1", "trn2", "trn3")] == [512] * 3
    assert TARGETS["cpu"].matmul_columns(8) == 512


def test_unknown_target_is_named() -> None:
    """The error lists the names."""
    with pytest.raises(ValueError, match=r"No target 'trn9'. Use one of trn1, trn2, trn3, cpu\."):
        target("trn9")
