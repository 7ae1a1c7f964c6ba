"""`jit(f, dynamic=..., target="host")`: one executable for every size, nothing padded."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import trnx
import trnx.numpy as tn
from tests.runtime.test_bucketing import axes_of, exact
from tests.transforms.composites import COMPOSITES, sizes_to_try
from trnx import nn, testing
from trnx.core import config, tree
from trnx.transforms import inline_calls

MAY_BE_PADDED = frozenset(
    (
        # loops and branches, movement, merged axes, scatters and exact integer sums
        *("lstm", "gradient of lstm", "newton", "either"),
        *("conv net", "gradient of conv net", "moves"),
        *("linear over merged rows", "gradient over merged rows", "loss over merged rows"),
        *("gradient of embeddings", "segment mean"),
        *("counts", "integers", "ranks"),
    )
)
"""What may have no kernel over run-time sizes, and is then padded to buckets on the host too."""

FAST = ("huber", "gradient of mlp", "causal attention", "gradient of layer norm", "moves")


def _listed() -> list[Any]:
    return [
        pytest.param(name, marks=() if name in FAST else pytest.mark.nightly) for name in COMPOSITES
    ]


@pytest.mark.parametrize("name", _listed())
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the references meet infinities
def test_composites_at_run_time_sizes(name: str) -> None:
    """Results are those of exact shapes, by one executable for all of them."""
    composite = COMPOSITES[name]
    program = inline_calls(composite.program("f32"))
    function = trnx.jit(composite.function, dynamic=axes_of(composite), target="host")
    tried = [s for s in sizes_to_try(composite, 2, seed=len(name)) if 0 not in s.values()]
    with testing.count_compiles() as compiles:
        for number, sizes in enumerate(tried):
            args = composite.arguments(sizes, number, "f32")
            with config.pad_fill("nan"):
                found = tree.leaves(function(*map(tn.asarray, args)))
            for got, want in zip(found, exact(program, sizes, args), strict=True):
                assert got.shape == want.shape
                if want.dtype.kind == "f":
                    np.testing.assert_allclose(got, want, rtol=5e-4, atol=5e-5, err_msg=str(sizes))
                else:
                    np.testing.assert_array_equal(got, want, err_msg=str(sizes))
    if name not in MAY_BE_PADDED:
        assert compiles() == 1


def attention(q: Any, k: Any, v: Any) -> Any:
    """Attention without a mask."""
    return nn.softmax(q @ k.T / 8.0) @ v


def test_sizes_far_apart_share_one_compile() -> None:
    """Sizes of three decades, donation and captured arrays, and the empty array by a bucket."""
    scale = tn.asarray(np.linspace(1, 2, 64, dtype=np.float32))
    function = trnx.jit(lambda x: attention(x, x, x * scale), dynamic={"x": "n"}, target="host")
    with testing.count_compiles() as compiles:
        for n in (1, 2, 17, 300, 1500):
            x = np.random.default_rng(n).normal(size=(n, 64)).astype(np.float32)
            want = np.asarray(attention(*map(tn.asarray, (x, x, x * np.asarray(scale)))))
            np.testing.assert_allclose(function(x), want, rtol=1e-4, atol=1e-5)
            assert function(x).shape == (n, 64)
    assert sum(event.kind == "jit" for event in compiles.events) == 1
    assert function(np.zeros((0, 64), np.float32)).shape == (0, 64)


def test_donation() -> None:
    """A donated argument is given away, and the result is right."""
    function = trnx.jit(lambda x: x * 2 + 1, dynamic={"x": "n"}, target="host", donate_argnums=0)
    for n in (3, 1000):
        x = tn.asarray(np.ones(n, np.float32))
        y = function(x)
        assert x.is_donated()
        np.testing.assert_array_equal(y, np.full(n, 3, np.float32))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"target": "host"}, "target but no dynamic sizes"),
        ({"target": "gpu", "dynamic": True}, "got target='gpu'"),
    ],
)
def test_errors(arguments: dict[str, Any], text: str) -> None:
    """One error, with its remedy."""
    with pytest.raises(ValueError, match=text):
        trnx.jit(lambda x: x, **arguments)
