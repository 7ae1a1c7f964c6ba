"""What notebooks show of a function on its way through the compiler."""

from __future__ import annotations

import re
from html import unescape

import numpy as np

import trnx
import trnx.numpy as tnp
from trnx.runtime.stages import STAGES


def softmax(x):
    e = tnp.exp(x - tnp.max(x, axis=1, keepdims=True))
    return e / tnp.sum(e, axis=1, keepdims=True)


X = tnp.asarray(np.linspace(-1, 1, 256 * 64, dtype=np.float32).reshape(256, 64))


def text_of(page: str) -> str:
    return unescape(re.sub(r"<[^>]*>", "", page))


def test_lowered_lists_every_stage_and_the_texts_that_changed() -> None:
    lowered = trnx.jit(softmax).lower(X)
    page = lowered._repr_html_()
    rows = re.findall(
        r"<tr><td[^>]*><code>(\w+)</code></td><td[^>]*>([^<]+)</td><td[^>]*>(.*?)</td>", page
    )
    assert [name for name, _, _ in rows] == list(STAGES[:-1])
    sizes = {name: size for name, _, size in rows}
    assert sizes["trace"] == "9 equations" and sizes["fuse"] == "1 group"
    assert sizes["inline"].endswith("unchanged") and "1 kernel, " in sizes["tile"]
    shown = re.findall(r"<details><summary><code>(\w+)</code>", page)
    assert shown == [name for name, size in sizes.items() if not size.endswith("unchanged")]
    assert lowered.as_text("schedule").splitlines()[0] in text_of(page)
    assert "softmax for neuron (trn2)" in page
    assert repr(lowered) == "<Lowered softmax for neuron>"


def test_forms_are_what_as_text_prints() -> None:
    lowered = trnx.jit(softmax).lower(X)
    forms = lowered.forms()
    assert list(forms) == list(STAGES[:-1])
    assert str(forms["fuse"]) == lowered.as_text("fuse")
    assert forms["check"] is lowered.tile_program


def test_tile_program_shows_the_users_line_above_its_instructions() -> None:
    program = trnx.jit(softmax).lower(X).tile_program
    page = program._repr_html_()
    notes = [unescape(note) for note in re.findall(r"<b [^>]*>(.*?)</b>", page)]
    assert [re.sub(r":\d+", "", note) for note in notes] == [
        "# test_display.py (softmax)   e = tnp.exp(x - tnp.max(x, axis=1, keepdims=True))",
        "# test_display.py (softmax)   return e / tnp.sum(e, axis=1, keepdims=True)",
    ]
    without = re.sub(r" *<b .*</b>\n", "", page)
    plain = "\n".join(
        line for line in str(program).splitlines() if not line.lstrip().startswith("#")
    )
    assert text_of(without).strip() == plain.strip()
    assert repr(program) == "<TileProgram softmax for trn2: 1 kernel, 1 call>"


def test_every_instruction_names_a_line_of_the_function() -> None:
    """Also those that belong to no single equation: loads, transposes of operands, stores."""

    def layer(x, w, b):
        return tnp.tanh(x @ w + b)

    w, b = tnp.ones((64, 32)), tnp.ones((32,))
    timeline = trnx.jit(layer).lower(X, w, b).simulate().timeline
    lines = {event.instruction.source.function for event in timeline.events}
    assert lines == {"layer"}


def test_simulated_run_shows_findings_and_timeline() -> None:
    run = trnx.jit(softmax).lower(X).simulate()
    page = run._repr_html_()
    assert "no findings" in page and "<svg" in page
    assert run.timeline._repr_svg_() in page
    assert re.fullmatch(r"<Timeline softmax: \d+ instructions, .* µs on trn2>", repr(run.timeline))
    assert repr(run.cost).startswith("<CostReport: ") and run.cost.summary() in repr(run.cost)
    assert re.fullmatch(
        r"<SimResult softmax: f32\[256, 64\]; 0 findings; .* us on trn2>", repr(run)
    )


def test_completion_offers_what_users_call() -> None:
    names = {name for name in dir(trnx) if not name.startswith("_")}
    assert {"jit", "grad", "vmap", "make_ir", "numpy", "nn", "Array", "config", "devices"} <= names
    assert not names & {"importlib", "annotations", "Any", "TYPE_CHECKING", "set_evaluator"}
    assert all(getattr(trnx, name) is not None for name in names)
