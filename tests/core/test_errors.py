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
WHERE = r"\(at test_errors\.py:\d+ \(.+\)\)"
TEXT = (
    rf"^trnx\.%s cannot use its arguments: .+ {WHERE}\. See help\(trnx\.%s\) for what it takes\.$"
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
    with pytest.raises(ArgumentError, match=TEXT % (name, name)) as caught:
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


def f(x: Any, y: Any = 0) -> Any:
    """A function to transform."""
    return x + y


PLACES = (
    r"{0} got {1}={2}, which is no position of an argument \(at .*Use an int or a tuple of ints"
)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: trnx.vmap(None), "vmap needs a function and got NoneType .*Pass one"),
        (lambda: trnx.grad(3), "grad needs a function and got int"),
        (lambda: trnx.jvp("f", (X,), (X,)), "jvp needs a function and got str"),
        (lambda: trnx.jvp(f, X, X), r"jvp takes the primals as a tuple.*Pass \(x,\)"),
        (lambda: trnx.linearize(None, X), "linearize needs a function"),
        (lambda: trnx.checkpoint(2), "checkpoint needs a function"),
        (lambda: trnx.grad(f, argnums=None), PLACES.format("grad", "argnums", None)),
        (lambda: trnx.grad(f, argnums=1.5), PLACES.format("grad", "argnums", 1.5)),
        (lambda: trnx.jit(f, static_argnums="x"), PLACES.format("jit", "static_argnums", "'x'")),
        (lambda: trnx.jit(f, donate_argnums=(0, "x")), "jit got donate_argnums="),
        (
            lambda: trnx.jit(f, donate_argnums=5),
            "jit got donate_argnums 5, but f takes 2 pos.*Name",
        ),
        (lambda: trnx.jit(f, static_argnums=-3), "jit got static_argnums -3, but f takes 2"),
        (
            lambda: trnx.jit(f, static_argnames="z"),
            "static_argnames 'z', which is no argument of f",
        ),
        (lambda: trnx.dim(3), "3 is not a size name"),
        (lambda: trnx.dim("n", min="a"), "Size n has the bounds 'a' and None.*Use Python ints"),
        (lambda: trnx.multiples("a"), "multiples of 'a'.*Use an int of at least 1"),
        (lambda: trnx.powers_of_two(2.0), "least bucket 2.0 is no power of two"),
        (lambda: config.threads.set(-1), "Option threads cannot be -1. Use 0 or more"),
    ],
)
def test_arguments_that_public_functions_check(call: Callable[[], Any], text: str) -> None:
    """Before anything is traced, and at the line of the call."""
    with pytest.raises((TypeError, ValueError), match=text) as caught:
        call()
    assert "threads" in text or "(at test_errors.py:" in str(caught.value)


def test_positions_beyond_the_named_parameters() -> None:
    """Functions with ``*args`` and ``**kwargs`` take any position and any name."""

    def many(*args: Any, **kwargs: Any) -> Any:
        return args[1] * kwargs["k"]

    assert trnx.jit(many, static_argnums=0, static_argnames="k")("s", X, k=2).shape == (3, 4)
