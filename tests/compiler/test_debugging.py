"""What the debugging options print and write while a program is compiled."""

from __future__ import annotations

from pathlib import Path

import pytest

import trnx.numpy as tnp
from trnx.compiler.pipeline import PASSES, compile_program
from trnx.core import Program, config, make_aval, trace_program


def program(name: str = "layer", rows: int = 256) -> Program:
    avals = [make_aval((rows, 64), "f32"), make_aval((64, 32), "f32")]
    return trace_program(lambda x, w: [tnp.tanh(x @ w)], avals, name)


def test_level_3_prints_the_chosen_tiles(capsys: pytest.CaptureFixture[str]) -> None:
    with config.debug(3):
        compile_program(program(), "trn2")
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "# tiles of layer for trn2"
    assert " B sbuf, " in lines[1] and lines[1].endswith(" B psum per partition")
    assert any(line.startswith("#     psum f32[128,") for line in lines)
    assert len(lines) > 4


def test_level_4_prints_the_tile_program(capsys: pytest.CaptureFixture[str]) -> None:
    with config.debug(4):
        compile_program(program(), "trn2")
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("tile program layer target=trn2 {")
    assert printed.err.count("tile program") == 1


def test_level_5_prints_every_pass(capsys: pytest.CaptureFixture[str]) -> None:
    with config.debug(5):
        compile_program(program(), "trn2")
    text = capsys.readouterr().err
    heads = [line for line in text.splitlines() if line.startswith("# layer after")]
    assert heads == [f"# layer after {step.name}" for step in PASSES]


def test_dump_writes_a_file_per_pass_and_program(tmp_path: Path) -> None:
    with config.dump_ir(str(tmp_path)):
        compile_program(program(), "trn2")
        compile_program(program(rows=128), "trn2")
    files = sorted(path.name for path in tmp_path.iterdir())
    assert len(files) == 2 * len(PASSES)
    assert all(name.startswith("layer.") and name.endswith(".txt") for name in files)
    (first,) = [p for p in tmp_path.glob("*.00.inline.txt") if "f32[128,64]" in p.read_text()]
    assert first.read_text().startswith("program layer(a: f32[128,64], b: f32[64,32])")
