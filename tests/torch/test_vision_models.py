"""A residual network, a U-Net, a ViT and an LSTM: training against the CPU."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tests.torch.models import parity, vision  # noqa: E402


@pytest.mark.parametrize("name", vision.MODELS)
def test_compiled_training_matches_cpu(name: str) -> None:
    model, batch = vision.MODELS[name]()
    parity.check(model, batch, vision.loss, compiled=True, rtol=1e-3, atol=1e-4)


@pytest.mark.nightly
@pytest.mark.parametrize("name", vision.LARGER)
def test_larger_compiled_training_matches_cpu(name: str) -> None:
    model, batch = vision.LARGER[name]()
    parity.check(model, batch, vision.loss, compiled=True, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("name", vision.MODELS)
def test_eager_training_matches_cpu(name: str) -> None:
    model, batch = vision.MODELS[name]()
    parity.check(model, batch, vision.loss, compiled=False, fallbacks=True, rtol=1e-3, atol=1e-4)
