"""Pages of documentation: their examples run, their tables come from the code.

A page is Markdown. Its ``python`` blocks run one after the other in one module; a ``text`` block
that follows one (with nothing but blank lines between) is what it prints to stdout and stderr. What
stands between ``<!-- generated: NAME -->`` and ``<!-- end -->`` is written by ``SECTIONS[NAME]``.
`tests/docs` holds both; `make golden` rewrites what differs.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import linecache
import os
import pkgutil
import re
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]

NUMBER = re.compile(r"[-+]?\d+\.\d*(?:e[-+]?\d+)?|[-+]?\d+e[-+]?\d+")
"""A fractional number: measured or rounded, so it may differ between machines."""

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
_SECTION = re.compile(r"(<!-- generated: (\S+) -->\n)(.*?)(<!-- end -->)", re.S)


def pages() -> list[Path]:
    """The README and every page of `docs/`."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def masked(text: str) -> str:
    """A text with every fractional number replaced by ``~``."""
    return NUMBER.sub("~", text)


# ---- examples ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Example:
    """A ``python`` block and what it shall print.

    Attributes:
        code: its text.
        expected: text of the block that follows; None when none does.
        span: where that text lies in the page.
    """

    code: str
    expected: str | None
    span: tuple[int, int]


def examples(text: str) -> list[Example]:
    """The ``python`` blocks of a page, in order."""
    found: list[Example] = []
    blocks = list(_FENCE.finditer(text))
    for block, after in zip_longest(blocks, blocks[1:]):
        if block[1] != "python":
            continue
        follows = (
            after is not None
            and after[1] == "text"
            and not text[block.end() : after.start()].strip()
        )
        expected = after[2] if after is not None and follows else None
        span = after.span(2) if after is not None and follows else (0, 0)
        found.append(Example(block[2], expected, span))
    return found


def run(found: list[Example]) -> Iterator[tuple[Example, str]]:
    """Run examples in one module, and give what each printed.

    Lines of the page's code are named ``example.py``, counted through the whole page.
    """
    scope: dict[str, Any] = {"__name__": "example"}
    source = ""
    for example in found:
        padding = "\n" * source.count("\n")
        source += example.code
        linecache.cache["example.py"] = (len(source), None, source.splitlines(True), "example.py")
        printed = io.StringIO()
        with (
            contextlib.redirect_stdout(printed),
            contextlib.redirect_stderr(printed),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("error")  # an example that warns would teach to ignore warnings
            exec(compile(padding + example.code, "example.py", "exec"), scope)
        yield example, printed.getvalue()


def outputs(page: Path, folder: Path) -> list[str]:
    """What each example of a page prints, run in a process and a folder of its own.

    Raises:
        RuntimeError: an example failed; holds what the process wrote to stderr.
    """
    result = folder / "outputs.json"
    done = subprocess.run(
        [sys.executable, "-m", "tools.docs", str(page), str(result)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"An example of {page.name} failed:\n{done.stderr}")
    printed: list[str] = json.loads(result.read_text(encoding="utf-8"))
    return printed


# ---- generated sections --------------------------------------------------------------------------


def _table(head: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _options() -> str:
    from trnx.core import config

    return config.options_table()


def _program_constraints() -> str:
    from trnx.core.checking import constraints_table

    return constraints_table()


def _passes() -> str:
    from trnx.compiler.pipeline import PASSES

    rows = ((f"`{p.name}`", p.input_form, p.output_form, p.doc) for p in PASSES)
    return _table(("pass", "takes", "gives", "what it does"), rows)


def _instructions() -> str:
    from trnx.compiler.tile.isa import SPECS, OperandSpec

    def operands(found: tuple[OperandSpec, ...]) -> str:
        return ", ".join(f"{o.name}?" if o.optional else o.name for o in found) or "none"

    rows = (
        (
            f"`{s.name}`",
            "dma: " * s.is_dma + ", ".join(s.engines),
            operands(s.outs),
            operands(s.ins),
            ", ".join(a.name for a in s.attrs) or "none",
            s.doc,
        )
        for s in SPECS.values()
    )
    head = ("instruction", "engines", "writes", "reads", "attributes", "meaning")
    return _table(head, rows)


def _operators() -> str:
    from trnx.compiler.tile.isa import ALU

    rows = (
        (
            f"`{op.name}`",
            op.kind,
            ", ".join(op.engines),
            "yes" if op.reducible else "",
            "yes" if op.native else "`cpu` only",
        )
        for op in ALU.values()
    )
    return _table(("operator", "kind", "engines", "reduces", "on a NeuronCore"), rows)


def _activations() -> str:
    from trnx.compiler.tile.isa import ACTIVATIONS

    return ", ".join(f"`{name}`" for name in ACTIVATIONS) + "\n"


def _errors() -> str:
    """Every exception and warning class with its bases and the first sentence of its docstring."""
    from trnx.core.errors import TrnxError

    for package in ("trnx", "trnx_torch"):
        module = importlib.import_module(package)
        for part in pkgutil.walk_packages(module.__path__, f"{package}."):
            if not part.name.endswith("__main__"):
                importlib.import_module(part.name)

    def subclasses(cls: type) -> Iterator[type]:
        yield cls
        for child in cls.__subclasses__():
            yield from subclasses(child)

    found = {
        cls
        for base in (TrnxError, ImportError, UserWarning)
        for cls in subclasses(base)
        if cls.__module__.split(".")[0] in ("trnx", "trnx_torch")
    }
    found.discard(TrnxError)
    rows = (
        (
            f"`{cls.__module__}.{cls.__name__}`",
            ", ".join(f"`{b.__name__}`" for b in cls.__bases__ if b is not TrnxError) or "",
            " ".join((cls.__doc__ or "").split("\n\n")[0].split()),
        )
        for cls in sorted(found, key=lambda c: (c.__module__, c.__name__))
    )
    return _table(("class", "is also", "when"), rows)


def _design_notes() -> str:
    rows = []
    for path in sorted((ROOT / "docs" / "design").glob("*.md")):
        number, title = (
            path.read_text(encoding="utf-8").split("\n", 1)[0].lstrip("# ").split(" ", 1)
        )
        rows.append((f"[{number.rstrip(':')}](design/{path.name})", title[0].upper() + title[1:]))
    return _table(("note", "what was decided"), iter(rows))


def _performance(suite: str) -> Callable[[], str]:
    def generate() -> str:
        from benchmarks.page import table

        return table(suite)

    return generate


def _torch_support(part: str) -> Callable[[], str]:
    def generate() -> str:
        from tests.torch.opinfo import sweep, table

        writers = {
            "differences": table.differences,
            "modules": table.others,
            "operators": table.operators,
            "summary": table.summary,
        }
        return writers[part](sweep.load()) + "\n"

    return generate


SECTIONS: dict[str, Callable[[], str]] = {
    "activations": _activations,
    "design-notes": _design_notes,
    "errors": _errors,
    "instructions": _instructions,
    "operators": _operators,
    "options": _options,
    "passes": _passes,
    "performance-bucket": _performance("bucket"),
    "performance-compile": _performance("compile"),
    "performance-dispatch": _performance("dispatch"),
    "performance-host": _performance("host"),
    "program-constraints": _program_constraints,
    "torch-differences": _torch_support("differences"),
    "torch-modules": _torch_support("modules"),
    "torch-operators": _torch_support("operators"),
    "torch-summary": _torch_support("summary"),
}
"""What writes each generated section."""


PICTURE = ROOT / "docs" / "images" / "timeline.svg"
"""The timeline at the top of the README; `make golden` draws it."""


def picture() -> str:
    """The modelled timeline of a linear layer with gelu, 256 x 512 x 1024 in float32, on trn2."""
    import trnx
    import trnx.nn as nn
    import trnx.numpy as tnp

    def layer(x: trnx.Array, w: trnx.Array, b: trnx.Array) -> trnx.Array:
        return nn.gelu(x @ w + b)

    shapes = ((256, 512), (512, 1024), (1024,))
    with trnx.config.target("trn2"):
        lowered = trnx.jit(layer).lower(*(tnp.ones(shape) for shape in shapes))
        return lowered.simulate().timeline.to_svg()


def sections(text: str) -> list[str]:
    """Names of the generated sections of a page."""
    return [match[2] for match in _SECTION.finditer(text)]


def filled(text: str) -> str:
    """A page with its generated sections written anew.

    Raises:
        KeyError: a section has no generator.
    """
    return _SECTION.sub(lambda m: f"{m[1]}\n{SECTIONS[m[2]]()}\n{m[4]}", text)


if __name__ == "__main__":
    found = examples(Path(sys.argv[1]).read_text(encoding="utf-8"))
    texts = [printed for _, printed in run(found)]
    Path(sys.argv[2]).write_text(json.dumps(texts), encoding="utf-8")
