"""Entries of PyTorch's databases are as good as `opinfo/results.json` and the page say, or better.

CI measures a fixed share, a few samples each; `make nightly` measures everything.
"""

from __future__ import annotations

import json
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from tests.torch.opinfo import sweep, table

RECORDED = sweep.load()
SHARE = {"operators": 40, "modules": 30, "optimizers": 6}
"""CI measures one entry in so many."""

SAMPLES = 2
NEEDED = {
    ("operators", "float32"): 0.98,
    ("operators", "int64"): 0.98,
    ("operators", "bool"): 0.98,
    ("operators", "bfloat16"): 0.98,
    ("operators", "gradient"): 0.97,
    ("modules", "train"): 0.95,
    ("modules", "eval"): 0.95,
    ("optimizers", "plain"): 0.95,
    ("optimizers", "foreach"): 0.95,
    ("optimizers", "fused"): 0.95,
}
"""Share of samples that agree with the CPU; for gradients, share of operators."""


def sample(kind: str) -> list[str]:
    """Names CI measures: chosen by a hash of the name, so that they do not move."""
    return [name for name in sorted(RECORDED[kind]) if zlib.crc32(name.encode()) % SHARE[kind] == 0]


def worse_than_recorded(kind: str, measured: dict[str, Any]) -> list[str]:
    return [
        f"{name}: {text}"
        for name, entry in measured.items()
        for text in table.worse(kind, RECORDED[kind][name], entry)
    ]


@pytest.mark.parametrize("kind", list(table.PARTS))
def test_no_entry_of_the_sample_got_worse(kind: str) -> None:
    names = sample(kind)
    assert names
    measured = sweep.run(kind, names, limit=SAMPLES)
    assert set(measured) == set(names)
    assert not worse_than_recorded(kind, measured)


@pytest.mark.nightly
@pytest.mark.parametrize("kind", list(table.PARTS))
def test_no_entry_got_worse(kind: str) -> None:
    measured = sweep.run(kind, sorted(RECORDED[kind]))
    assert not worse_than_recorded(kind, measured)


def test_the_record_is_of_the_databases() -> None:
    """Names are unique, and no entry is of an operator that is not there any more."""
    from tests.torch.opinfo import databases

    for kind in databases.KINDS:
        names = databases.names(kind)
        assert len(set(names)) == len(names)
        assert set(RECORDED[kind]) <= set(names), kind


@pytest.mark.parametrize(("kind", "part"), list(NEEDED))
def test_agreement(kind: str, part: str) -> None:
    good, samples, clean, count = table.agreement(RECORDED[kind], part)
    share = clean / count if part == "gradient" else good / samples
    assert share >= NEEDED[kind, part]


NATIVE = {"samples": 9, "runs": "native"}
FALLBACK = {"samples": 9, "runs": "fallback", "fallbacks": ["aten::a"]}


@pytest.mark.parametrize(
    ("recorded", "measured", "texts"),
    [
        (NATIVE, {"samples": 2, "runs": "composite"}, []),
        (NATIVE, FALLBACK, ["float32: falls back in aten::a"]),
        (FALLBACK, NATIVE, []),
        (FALLBACK, {**FALLBACK, "fallbacks": ["aten::b"]}, []),
        (
            NATIVE,
            {**NATIVE, "failed": 2, "why": "wrong"},
            ["float32: 2 of 9 samples differ: wrong"],
        ),
        ({**NATIVE, "failed": 2, "why": ""}, {**NATIVE, "failed": 1, "why": ""}, []),
    ],
)
def test_what_counts_as_worse(
    recorded: dict[str, Any], measured: dict[str, Any], texts: list[str]
) -> None:
    assert table.worse("operators", {"float32": recorded}, {"float32": measured}) == texts


def test_a_crash_counts_as_worse() -> None:
    crash = {"crash": "crash with status -6"}
    assert table.worse("operators", {"float32": NATIVE}, crash) == ["crash with status -6"]
    assert table.worse("operators", crash, crash) == []
    assert table.worse("operators", crash, {"float32": NATIVE}) == []


WORKER = """
import os, sys, time
for name in sys.argv[1:]:
    print("START", name, flush=True)
    if name == "aborts":
        os.abort()
    if name == "hangs":
        time.sleep(600)
    print("DONE", name, '{"float32": {"samples": 1}}', flush=True)
"""


def test_a_dead_worker_costs_one_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    def worker(kind: str, names: list[str], limit: int, parts: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", WORKER, *names],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    monkeypatch.setattr(sweep, "_worker", worker)
    monkeypatch.setattr(sweep, "PATIENCE", 5.0)
    seen: list[str] = []
    found = sweep.run(
        "operators", ["a", "aborts", "b", "hangs", "c"], report=lambda name, _: seen.append(name)
    )
    good = {"float32": {"samples": 1}}
    assert found["a"] == found["b"] == found["c"] == good
    assert found["aborts"] == {"crash": "crash with status -6"}
    assert found["hangs"] == {"crash": "hang"}
    assert seen == ["a", "aborts", "b", "hangs", "c"]


def test_results_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    results = {"operators": {"b": {"float32": NATIVE}, "a": {"crash": "hang"}}}
    sweep.save(results, path)
    assert sweep.load(path) == results
    assert len(path.read_text().splitlines()) == 6
    assert json.loads(path.read_text()) == results
