"""Formatting, lint and types, so that CI holds what `make lint` shows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    "command",
    [
        ["ruff", "format", "--check", "--quiet", "."],
        ["ruff", "check", "--quiet", "."],
        ["mypy", "--no-error-summary"],
    ],
    ids=["format", "lint", "types"],
)
def test_tool_is_silent(command: list[str]) -> None:
    """The tool exits 0 on the whole tree."""
    run = subprocess.run([sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, (run.stdout + run.stderr)[-6000:]
