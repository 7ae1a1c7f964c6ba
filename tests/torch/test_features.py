"""Every check in features/, in worker processes: a crash fails one check, not the test run."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

FEATURES = Path(__file__).with_name("features")
ROOT = FEATURES.parents[2]


def names() -> list[str]:
    """Names of the checks, read without importing them."""
    return [
        node.name
        for file in sorted(FEATURES.glob("*.py"))
        for node in ast.parse(file.read_text()).body
        if isinstance(node, ast.FunctionDef)
        and any(isinstance(d, ast.Name) and d.id == "check" for d in node.decorator_list)
    ]


@pytest.fixture(scope="module")
def outcomes() -> dict[str, str]:
    """Check name -> "OK", or what went wrong. A worker that dies is replaced for the rest."""
    environment = {
        **os.environ,
        "TRNX_DEVICES": "2",
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
    }
    result: dict[str, str] = {}
    todo = names()
    while todo:
        process = subprocess.run(
            [sys.executable, "-m", "tests.torch.features", *todo],
            capture_output=True,
            text=True,
            env=environment,
            cwd=ROOT,
            timeout=1800,
            check=False,
        )
        running = None
        for line in process.stdout.splitlines():
            word, _, rest = line.partition(" ")
            name, _, detail = rest.partition(" ")
            if word == "START":
                running = name
            elif word in ("OK", "FAIL"):
                result[name] = "OK" if word == "OK" else detail
                running = None
        if running is not None:
            result[running] = f"the process died with status {process.returncode}"
        elif process.returncode != 0:
            pytest.fail(f"the worker failed before any check: {process.stderr[-2000:]}")
        left = [name for name in todo if name not in result]
        assert len(left) < len(todo), process.stderr[-2000:]
        todo = left
    return result


@pytest.mark.parametrize("name", names())
def test_feature(name: str, outcomes: dict[str, str]) -> None:
    assert outcomes[name] == "OK"
