"""Shared set-up of the PyTorch tests."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent

# pytest's log capture makes torch write a structured record of every graph it handles.
logging.getLogger("torch.__trace").disabled = True


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every test here needs the extension; a fallback warning is no error unless a test says so."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.torch)
            item.add_marker(
                pytest.mark.filterwarnings("ignore::trnx_torch.report.FallbackWarning"),
                append=False,
            )


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> Iterator[None]:
    """Compiled code of one test does not count against the recompile limit of another's."""
    yield
    dynamo = sys.modules.get("torch._dynamo")
    if dynamo is not None:
        dynamo.reset()


@pytest.fixture
def run_python() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs a program text in a fresh interpreter that imports this source tree."""

    def run(
        program: str,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        timeout: float = 300,
    ) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        environment.update(env or {})
        return subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            env=environment,
            cwd=cwd,  # `-c` puts it first on the path
            timeout=timeout,
            check=False,
        )

    return run
