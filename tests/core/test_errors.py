"""Errors nobody planned, met while a public function takes its arguments apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import trnx
import trnx.numpy as tn
from trnx import lax, nn
from trnx.core import ArgumentError, TrnxError, config

X = tn.ones((3, 4))
TEXT = (
    r"^trnx\.{name} cannot use its arguments: .+ \(at test_errors\.py:\d+ \(.+\)\)\. "
    + r"See help\(trnx\.{name}\) for what it takes\.$"
)

CALLS: dict[str, Callable[[], Any]] = {
    "numpy.tensordot": lambda: tn.tensordot(X, X, axes=None),
    "numpy.pad": lambda: tn.pad(X, "abc"),
    "numpy.hstack": lambda: tn.hstack([]),
    "numpy.repeat": lambda: tn.repeat(X, 2.5),  # type: ignore[arg-type]
    "nn.layer_norm": lambda: nn.layer_norm(X, None, None, eps="a"),  # type: ignore[arg-type]
    "lax.argmax": lambda: lax.argmax(X, "a"),  # type: ignore[arg-type]
    "lax.concatenate": lambda: lax.concatenate(None, 0),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", CALLS)
def test_an_argument_nobody_expected(name: str) -> None:
    """The cause as Python words it, the user's line, a remedy; the original error is the cause."""
    with pytest.raises(ArgumentError, match=TEXT.replace("{name}", name)) as caught:
        CALLS[name]()
    assert isinstance(caught.value, TypeError)
    assert isinstance(caught.value, ValueError)
    assert not isinstance(caught.value.__cause__, TrnxError)
    assert caught.value.__cause__ is not None


def test_errors_of_the_users_own_code_stay_as_they_are() -> None:
    """A function that trnx calls back raises what it raises."""

    def loss(x: Any) -> Any:
        return {}["missing"] + x

    for call in (lambda: trnx.grad(loss)(X), lambda: trnx.jit(loss)(X)):
        with pytest.raises(KeyError, match="missing"):
            call()


def test_defects_are_not_blamed_on_the_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error inside the compiler keeps its type: other arguments would not repair it."""
    from trnx.compiler import pipeline

    def broken(*args: Any, **kwargs: Any) -> Any:
        raise KeyError("a defect")

    monkeypatch.setattr(pipeline, "simplify", broken)
    with config.disk_cache(False), pytest.raises(KeyError, match="a defect"):
        tn.tanh(tn.ones((3, 17, 2)))


def test_a_wrong_number_of_arguments_keeps_pythons_text() -> None:
    """It says what is missing better than anything else."""
    with pytest.raises(
        TypeError, match=r"zeros\(\) missing 1 required positional argument: 'shape'"
    ):
        tn.zeros()  # type: ignore[call-arg]
