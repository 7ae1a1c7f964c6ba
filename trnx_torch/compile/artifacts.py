"""Files about compiled graphs, for people to look at."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy
from torch.fx import GraphModule

from trnx.core.errors import TrnxError
from trnx.runtime.stages import Lowered

_SIMULATED_FLOPS = 5e7  # larger programs get no timeline: simulating them takes minutes


def write(directory: Path, name: str, module: GraphModule, lowered: Lowered) -> Path:
    """Write a graph and what the compiler made of it.

    ``graph.py`` is the captured graph, ``program.txt`` the traced program, ``tile.txt`` the tile
    program, ``nki.py`` its NKI source (or why there is none), ``cost.txt`` the modelled cost, and
    for small graphs ``timeline.html`` what each engine does when, for inputs of zeros.

    Args:
        directory: made if it is not there; each graph has a folder of its own in it.
        name: name of the folder.
        module: the captured graph.
        lowered: its program.

    Returns:
        The folder.
    """
    folder = directory / name
    folder.mkdir(parents=True, exist_ok=True)
    parts: dict[str, Callable[[], str]] = {
        "graph.py": lambda: module.print_readable(print_output=False),
        "program.txt": lowered.as_text,
        "tile.txt": lambda: str(lowered.tile_program),
        "nki.py": lambda: _nki(lowered),
        "cost.txt": lambda: str(lowered.cost()),
    }
    for file, text in parts.items():
        (folder / file).write_text(text() + "\n", encoding="utf-8")
    if lowered.cost().flops <= _SIMULATED_FLOPS:
        program, values = lowered.tile_program, []
        for buffer in program.buffers:
            if buffer.kind == "input":
                values.append(
                    numpy.zeros(tuple(s for s in buffer.shape if isinstance(s, int)), buffer.dtype)
                )
        constants = len(values) - len(lowered.program.inputs)
        lowered.simulate(*values[constants:]).timeline.to_html(folder / "timeline.html")
    return folder


def _nki(lowered: Lowered) -> str:
    try:
        return lowered.as_text("nki")
    except TrnxError as error:  # an instruction only the host and the simulator have
        return "\n".join(f"# {line}" for line in str(error).splitlines())
