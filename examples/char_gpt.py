"""A character GPT learns a real text on device `neuron`, next to the same model on the CPU.

The text is the longest licence an installed package brings along, found through its metadata, so
nothing is downloaded. The same weights and batches train on the CPU and on `neuron`, compiled by
``torch.compile(backend="neuron")`` or operator by operator with ``--eager``; the loss curves are
printed side by side, then the model writes.

Run it with ``python examples/char_gpt.py``; ``--steps`` sets how long.
"""

from __future__ import annotations

import argparse
import copy
import sys
import time
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution

import torch
from torch import nn

import trnx_torch

F = nn.functional
PACKAGES = ("numpy", "torch", "setuptools")
CONTEXT, BATCH, WIDTH, HEADS, LAYERS, RATE = 32, 16, 64, 4, 2, 3e-3


@dataclass(frozen=True)
class Corpus:
    """A text as numbers.

    Attributes:
        name: where it is from.
        letters: its characters, sorted; a character's number is its place here.
        data: int64[length].
    """

    name: str
    letters: str
    data: torch.Tensor

    def batch(self, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        """Random windows int64[BATCH, CONTEXT], and the same one character later."""
        starts = torch.randint(len(self.data) - CONTEXT - 1, (BATCH,), generator=generator)
        index = starts[:, None] + torch.arange(CONTEXT)
        return self.data[index], self.data[index + 1]

    def text(self, numbers: torch.Tensor) -> str:
        """Characters of a row of numbers."""
        return "".join(self.letters[int(n)] for n in numbers)


def load() -> Corpus:
    """The longest licence text of the installed packages.

    Raises:
        FileNotFoundError: none of them brings one.
    """
    found: list[tuple[int, str, str]] = []
    for package in PACKAGES:
        try:
            files = distribution(package).files or []
        except PackageNotFoundError:
            continue
        for file in files:
            path = file.locate()
            if "licen" in file.name.lower() and path.is_file():
                text = path.read_text(encoding="utf-8", errors="ignore")
                found.append((len(text), f"{package}: {file.name}", text))
    if not found:
        raise FileNotFoundError(f"None of {', '.join(PACKAGES)} brings a licence text along.")
    _, name, text = max(found)
    letters = "".join(sorted(set(text)))
    return Corpus(name, letters, torch.tensor([letters.index(c) for c in text]))


class Block(nn.Module):
    """Causal attention and an MLP, each behind a layer norm and added to its input."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        heads = self.qkv(self.norm1(x)).view(batch, length, 3, HEADS, WIDTH // HEADS)
        query, key, value = heads.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class CharGPT(nn.Module):
    """int64[batch, length] characters to f32[batch, length, letters] scores of the next one."""

    def __init__(self, letters: int) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(letters, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*[Block() for _ in range(LAYERS)])
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, letters)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        return self.head(self.norm(self.blocks(self.token(tokens) + self.place(places))))


def loss_of(model: nn.Module, tokens: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Cross-entropy per character, in nats."""
    return F.cross_entropy(model(tokens).flatten(0, 1), wanted.flatten())


@dataclass(frozen=True)
class Run:
    """How one way of training went: loss per step, milliseconds per step after the first."""

    losses: list[float]
    first_seconds: float
    step_ms: float


def train(model: nn.Module, corpus: Corpus, steps: int, *, compiled: bool) -> Run:
    """Trains in place by AdamW; batches depend on the step only."""
    device = next(model.parameters()).device
    step = torch.compile(loss_of, backend="neuron", fullgraph=True) if compiled else loss_of
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    generator = torch.Generator().manual_seed(0)
    losses, times = [], []
    for _ in range(steps):
        tokens, wanted = corpus.batch(generator)
        start = time.perf_counter()
        loss = step(model, tokens.to(device), wanted.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        times.append(time.perf_counter() - start)
    later = times[1:] or times
    return Run(losses, times[0], 1e3 * sum(later) / len(later))


@torch.no_grad()
def write(model: nn.Module, corpus: Corpus, start: str, count: int) -> str:
    """`count` characters after `start`, always the likeliest."""
    device = next(model.parameters()).device
    tokens = torch.tensor([[corpus.letters.index(c) for c in start]], device=device)
    for _ in range(count):
        best = model(tokens[:, -CONTEXT:])[:, -1].argmax(-1, keepdim=True)
        tokens = torch.cat([tokens, best], 1)
    return corpus.text(tokens[0].cpu())


def main(arguments: list[str] | None = None) -> int:
    """Trains twice, prints both loss curves and a sample; 0 when the curves agree."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--eager", action="store_true", help="run operator by operator")
    options = parser.parse_args(arguments)
    corpus = load()
    torch.manual_seed(0)
    reference = CharGPT(len(corpus.letters))
    model = copy.deepcopy(reference).to("neuron")
    size = sum(p.numel() for p in model.parameters())
    print(f"{corpus.name}: {len(corpus.data):,} characters; {size:,} parameters")
    on_cpu = train(reference, corpus, options.steps, compiled=False)
    ours = train(model, corpus, options.steps, compiled=not options.eager)
    name = "neuron eager" if options.eager else "neuron compiled"
    print(f"{'step':>6}{'cpu':>10}{name:>18}")
    every = max(options.steps // 10, 1)
    for number in sorted({*range(0, options.steps, every), options.steps - 1}):
        print(f"{number:>6}{on_cpu.losses[number]:>10.4f}{ours.losses[number]:>18.4f}")
    print(f"ms per step: cpu {on_cpu.step_ms:.1f}, {name} {ours.step_ms:.1f}", end="")
    print(f" (first step {ours.first_seconds:.1f} s)")
    print(f"operators on the CPU: {trnx_torch.get_fallback_ops() or 'none'}")
    print("---", write(model, corpus, "The ", 120), "---", sep="\n")
    # Rounding differs and training amplifies it: compared while the curves must still agree.
    early = min(20, options.steps)
    apart = max(abs(a - b) for a, b in zip(on_cpu.losses[:early], ours.losses[:early], strict=True))
    print(f"largest difference of the first {early} losses: {apart:.1e}")
    return int(apart > 1e-3)


if __name__ == "__main__":
    sys.exit(main())
