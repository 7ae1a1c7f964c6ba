"""Execute the notebooks in place: `make notebooks`.

Committed notebooks carry their outputs, so that they read well where nobody runs them.
`tests/notebooks` executes them too and compares the outputs.
"""

from __future__ import annotations

import argparse
import html
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

from tools.docs import ROOT, masked

FOLDER = ROOT / "notebooks"
TIMEOUT_SECONDS = 900
"""For one cell; the first use of the PyTorch device may compile its extension."""

METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
"""Names no machine and no version, so that executing elsewhere gives the same file."""

_TAG = re.compile(r"<[^>]*>")


def paths() -> list[Path]:
    """Every notebook, in reading order."""
    return sorted(FOLDER.glob("*.ipynb"))


def execute(path: Path) -> Any:
    """Run a notebook in a fresh kernel and return it, tidied; the file stays as it is.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell failed; holds its traceback.
    """
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook,
        timeout=TIMEOUT_SECONDS,
        kernel_name="python3",
        resources={"metadata": {"path": str(path.parent)}},
    )
    client.execute()
    return tidy(notebook)


def tidy(notebook: Any) -> Any:
    """Drop what differs from run to run: times of execution, versions, cuts in printed text."""
    notebook.metadata = nbformat.from_dict(METADATA)
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type != "code":
            continue
        outputs: list[Any] = []
        for output in cell.outputs:
            if (
                outputs
                and output.output_type == outputs[-1].output_type == "stream"
                and output.name == outputs[-1].name
            ):
                outputs[-1].text += output.text
                continue
            data = output.get("data", {})
            if "image/svg+xml" in data:
                # GitHub shows a picture, but no picture inside HTML.
                data.pop("text/html", None)
            outputs.append(output)
        cell.outputs = outputs
    return notebook


def code_cells(notebook: Any) -> Iterator[Any]:
    """The code cells."""
    return (cell for cell in notebook.cells if cell.cell_type == "code")


def comparable(cell: Any) -> str:
    """The text of a cell's outputs with fractional numbers masked.

    Words, types, counts and program texts must stay as committed; measured or rounded numbers may
    differ between machines.
    """
    parts = []
    for output in cell.outputs:
        data = output.get("data", {})
        if output.output_type == "stream":
            parts.append(output.text)
        elif "image/svg+xml" in data:
            parts.append("picture")
        elif "text/html" in data:
            parts.append(html.unescape(_TAG.sub(" ", data["text/html"])))
        else:
            parts.append(data.get("text/markdown", data.get("text/plain", "")))
    return masked("\n".join(parts))


def main(arguments: list[str] | None = None) -> int:
    """Execute notebooks and write them back; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.notebooks", description=__doc__)
    parser.add_argument("paths", nargs="*", type=Path, help="notebooks; all of them by default")
    for path in parser.parse_args(arguments).paths or paths():
        print(f"executing {path.name}", flush=True)
        nbformat.write(execute(path), path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
