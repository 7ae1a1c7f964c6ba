"""Every notebook runs from a fresh kernel and shows what its committed outputs show."""

from __future__ import annotations

import difflib
import json
import re
from pathlib import Path

import pytest

pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")
pytest.importorskip("torch")

import nbformat

from tools import notebooks

# The kernel's own process and the client's sockets warn about things that are not ours.
pytestmark = pytest.mark.filterwarnings("default")

PATHS = notebooks.paths()
LOCAL = re.compile(r"/(?:tmp|home|root|usr|var|work|opt)/|site-packages|\bat 0x[0-9a-f]+")


def test_there_is_a_notebook() -> None:
    assert [path.name for path in PATHS][:1] == ["01_first_steps.ipynb"]


@pytest.mark.golden
@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_runs_and_shows_what_is_committed(path: Path, request: pytest.FixtureRequest) -> None:
    """Words, types, counts and program texts as committed; fractional numbers are not compared.

    Cells tagged `varies` only have to run. `make notebooks` (or `make golden`) rewrites the file.
    """
    executed = notebooks.execute(path)
    if request.config.getoption("--update-golden"):
        nbformat.write(executed, path)
        return
    committed = nbformat.read(path, as_version=4)
    differences: list[str] = []
    for before, after in zip(
        notebooks.code_cells(committed), notebooks.code_cells(executed), strict=True
    ):
        assert before.source == after.source
        if "varies" in after.metadata.get("tags", ()):
            continue
        old, new = (notebooks.comparable(cell).splitlines() for cell in (before, after))
        differences += difflib.unified_diff(old, new, f"committed {before.id}", "now", lineterm="")
    if differences:
        pytest.fail("outputs differ (make notebooks rewrites them):\n" + "\n".join(differences))


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_committed_outputs_read_well(path: Path) -> None:
    """Executed in order, nothing failed, no name of the machine that ran it, of moderate size."""
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    cells = list(notebooks.code_cells(notebook))
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell.outputs]
    assert all(output.output_type != "error" for output in outputs)
    assert all(output.get("name") != "stderr" for output in outputs)
    shown = json.dumps([output.get("data", output.get("text")) for output in outputs])
    assert not LOCAL.findall(shown)
    assert "image/svg+xml" in shown and "text/html" in shown
    assert path.stat().st_size < 400_000


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_links_lead_somewhere(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    text = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    links = re.findall(r"\]\((?!https?:)([^)#]+)", text)
    assert links
    assert [link for link in links if not (path.parent / link).exists()] == []
