"""The pages' examples print what the pages say, and their generated sections are current."""

from __future__ import annotations

import difflib
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tools import docs

PAGES = docs.pages()
NAMES = [str(path.relative_to(docs.ROOT)) for path in PAGES]
FOLDERS = ("benchmarks", "compiler", "docs", "examples", "notebooks", "ops", "tests", "tools")
FOLDERS += ("trnx", "trnx_torch")
LINK = re.compile(r"\]\((?!https?:)([^)#\s]+)")


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@pytest.mark.golden
@pytest.mark.parametrize("path", [p for p in PAGES if docs.examples(read(p))], ids=lambda p: p.stem)
def test_examples_print_what_the_page_says(
    path: Path, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Fractional numbers are not compared; `make golden` writes what is printed into the page."""
    text = read(path)
    found = docs.examples(text)
    if any(re.search(r"^(import|from) torch", example.code, re.M) for example in found):
        pytest.importorskip("torch")
    results = list(zip(found, docs.outputs(path, tmp_path), strict=True))
    if request.config.getoption("--update-golden"):
        for example, printed in reversed(results):
            if example.expected is not None:
                first, last = example.span
                text = text[:first] + printed + text[last:]
        path.write_text(text, encoding="utf-8")
        return
    for example, printed in results:
        expected = "" if example.expected is None else example.expected
        old, new = (docs.masked(part).splitlines() for part in (expected, printed))
        lines = "\n".join(difflib.unified_diff(old, new, path.name, "this run", lineterm=""))
        assert old == new, (
            f"{example.code}\nprints something else (make golden writes it):\n{lines}"
        )


@pytest.mark.golden
@pytest.mark.parametrize("path", [p for p in PAGES if docs.sections(read(p))], ids=lambda p: p.stem)
def test_generated_sections_are_current(path: Path, request: pytest.FixtureRequest) -> None:
    text = docs.filled(read(path))
    if request.config.getoption("--update-golden"):
        path.write_text(text, encoding="utf-8")
    assert read(path) == text, "run `make golden`"


@pytest.mark.golden
def test_the_picture_shows_what_is_modelled_now(request: pytest.FixtureRequest) -> None:
    """Lanes, kernels and the instructions on hover are current; times may have moved since."""

    def words(svg: str) -> list[str]:
        tree = ElementTree.fromstring(svg)
        return [docs.masked(text).split(" after ")[0] for text in tree.itertext()]

    drawn = docs.picture()
    if request.config.getoption("--update-golden"):
        docs.PICTURE.parent.mkdir(exist_ok=True)
        docs.PICTURE.write_text(drawn + "\n", encoding="utf-8")
    committed = docs.PICTURE.read_text(encoding="utf-8")
    lanes = ("tensor", "vector", "scalar", "gpsimd", "dma:sync", "dma:scalar", "dma:gpsimd")
    assert all(lane in words(committed) for lane in lanes)
    assert {w for w in words(committed) if w.isidentifier()} == {
        w for w in words(drawn) if w.isidentifier()
    }, "run `make golden`"


def test_every_generator_has_a_page() -> None:
    used = [name for path in PAGES for name in docs.sections(read(path))]
    assert sorted(used) == sorted(docs.SECTIONS)


@pytest.mark.parametrize(
    "path", [*PAGES, *docs.ROOT.glob("docs/design/*.md")], ids=lambda p: p.stem
)
def test_links_lead_somewhere(path: Path) -> None:
    assert [link for link in LINK.findall(read(path)) if not (path.parent / link).exists()] == []


@pytest.mark.parametrize("path", [*PAGES, docs.ROOT / "CONTRIBUTING.md"], ids=lambda p: p.stem)
def test_files_named_in_pages_exist(path: Path) -> None:
    """Paths in backquotes; outputs of runs are written below build/ and are none."""
    named = re.findall(rf"`((?:{'|'.join(FOLDERS)})/[\w./-]*)`", read(path))
    assert [name for name in named if not (docs.ROOT / name).exists()] == []


def test_the_index_links_every_page() -> None:
    index = read(docs.ROOT / "docs" / "index.md")
    linked = {(docs.ROOT / "docs" / link).resolve() for link in LINK.findall(index)}
    pages = {*docs.ROOT.glob("docs/*.md"), *docs.ROOT.glob("docs/design/*.md")}
    assert pages - {docs.ROOT / "docs" / "index.md"} <= linked


def test_a_block_runs_with_the_lines_of_its_page() -> None:
    page = "```python\nx = 1\n```\ntext\n```python\nraise ValueError(x)\n```\n\n```text\nno\n```\n"
    first, second = docs.examples(page)
    assert (first.expected, second.expected) == (None, "no\n")
    with pytest.raises(ValueError, match="1") as error:
        list(docs.run([first, second]))
    last = error.traceback[-1]
    assert (str(last.path), last.lineno) == ("example.py", 1)  # counted from 0


def test_masking_keeps_counts_and_words() -> None:
    assert docs.masked("33.02 us, 2e-09, 14 instr, f32[128,256]") == (
        "~ us, ~, 14 instr, f32[128,256]"
    )
