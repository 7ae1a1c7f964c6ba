"""GPT-2, Llama and BERT of the `transformers` package: training and generation against the CPU."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from tests.torch.models import language, parity  # noqa: E402


@pytest.mark.parametrize("name", language.MODELS)
def test_compiled_training_matches_cpu(name: str) -> None:
    model, batch = language.MODELS[name]()
    parity.check(model, batch, language.loss, compiled=True)


@pytest.mark.nightly
@pytest.mark.parametrize("name", language.MODELS)
def test_larger_compiled_training_matches_cpu(name: str) -> None:
    model, batch = language.MODELS[name](width=128, layers=4, length=48)
    parity.check(model, batch, language.loss, compiled=True, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", language.MODELS)
def test_eager_training_matches_cpu(name: str) -> None:
    model, batch = language.MODELS[name]()
    parity.check(model, batch, language.loss, compiled=False, fallbacks=True)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_greedy_generation_gives_the_same_tokens(name: str) -> None:
    model, batch = language.MODELS[name]()
    prompt = batch["input_ids"][:, :5]
    expected = language.greedy(model.eval(), prompt, 10)
    own = copy.deepcopy(model).to("neuron")
    assert language.greedy(own, prompt.to("neuron"), 10) == expected
