"""Small randomly initialised language models of the `transformers` package; nothing is loaded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
)

from tests.torch.models.parity import Batch

Model = tuple[torch.nn.Module, Batch]
VOCABULARY = 97


def _tokens(batch: int, length: int) -> torch.Tensor:
    return torch.randint(1, VOCABULARY, (batch, length))


def gpt2(width: int = 32, layers: int = 2, length: int = 12) -> Model:
    """GPT-2 without dropout."""
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=64,
        n_embd=width,
        n_layer=layers,
        n_head=4,
        resid_pdrop=0,
        embd_pdrop=0,
        attn_pdrop=0,
        bos_token_id=0,
        eos_token_id=0,
    )
    return GPT2LMHeadModel(config), {"input_ids": _tokens(2, length)}


def llama(width: int = 32, layers: int = 2, length: int = 12) -> Model:
    """Llama with grouped key and value heads."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        bos_token_id=0,
        eos_token_id=0,
    )
    return LlamaForCausalLM(config), {"input_ids": _tokens(2, length)}


def bert(width: int = 32, layers: int = 2, length: int = 12) -> Model:
    """BERT for classification, one sequence shorter than the other."""
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        intermediate_size=2 * width,
        max_position_embeddings=64,
        hidden_dropout_prob=0,
        attention_probs_dropout_prob=0,
    )
    mask = torch.ones(2, length, dtype=torch.int64)
    mask[1, -3:] = 0
    batch = {
        "input_ids": _tokens(2, length),
        "attention_mask": mask,
        "labels": torch.tensor([0, 1]),
    }
    return BertForSequenceClassification(config), batch


MODELS: dict[str, Callable[..., Model]] = {"gpt2": gpt2, "llama": llama, "bert": bert}


def loss(model: torch.nn.Module, batch: Batch) -> torch.Tensor:
    """Cross-entropy of the labels, or of the next token."""
    inputs: dict[str, Any] = dict(batch)
    labels = inputs.pop("labels", None)
    if labels is not None:
        return torch.nn.functional.cross_entropy(model(**inputs).logits, labels)
    logits = model(**inputs, use_cache=False).logits[:, :-1]
    wanted = batch["input_ids"][:, 1:]
    return torch.nn.functional.cross_entropy(
        logits.reshape(-1, logits.shape[-1]), wanted.reshape(-1)
    )


def greedy(model: torch.nn.Module, prompt: torch.Tensor, count: int) -> list[list[int]]:
    """`count` tokens after the prompt by the model's own generation with a KV cache."""
    with torch.no_grad():
        tokens = model.generate(
            prompt, max_new_tokens=count, do_sample=False, use_cache=True, pad_token_id=0
        )
    return tokens.cpu().tolist()
