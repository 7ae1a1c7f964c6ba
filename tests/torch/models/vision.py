"""Image and sequence models in plain PyTorch: a residual network, a U-Net, a ViT, an LSTM."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from tests.torch.models.parity import Batch

F = nn.functional
Model = tuple[nn.Module, Batch]


class Block(nn.Module):
    """Two 3x3 convolutions with batch norm, and the input added."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.first_norm = nn.BatchNorm2d(outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.second_norm = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.first_norm(self.first(x)))
        return F.relu(self.second_norm(self.second(y)) + self.shortcut(x))


class ResNet18(nn.Module):
    """The shape of ResNet-18: a 7x7 stem with max pooling and four stages of blocks."""

    def __init__(self, width: int, depths: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 7, 2, 3, bias=False)
        self.norm = nn.BatchNorm2d(width)
        blocks: list[nn.Module] = []
        channels = width
        for stage, depth in enumerate(depths):
            for number in range(depth):
                outputs = width * 2**stage
                blocks.append(Block(channels, outputs, 2 if stage and not number else 1))
                channels = outputs
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(channels, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.norm(self.stem(x))), 3, 2, 1)
        return self.head(F.adaptive_avg_pool2d(self.blocks(x), 1).flatten(1))


class UNet(nn.Module):
    """Two levels down and up again, one by a transposed convolution and one by resampling."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.down1 = self._pair(1, width)
        self.down2 = self._pair(width, 2 * width)
        self.bottom = self._pair(2 * width, 4 * width)
        self.up2 = nn.ConvTranspose2d(4 * width, 2 * width, 2, 2)
        self.merge2 = self._pair(4 * width, 2 * width)
        self.merge1 = self._pair(3 * width, width)
        self.out = nn.Conv2d(width, 2, 1)

    @staticmethod
    def _pair(inputs: int, outputs: int) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, padding=1),
            nn.GroupNorm(2, outputs),
            nn.SiLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1),
            nn.SiLU(),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = self.down1(x)
        b = self.down2(F.max_pool2d(a, 2))
        c = self.bottom(F.avg_pool2d(b, 2))
        b = self.merge2(torch.cat([self.up2(c), b], 1))
        up = F.interpolate(b, scale_factor=2, mode="bilinear", align_corners=False)
        return self.out(self.merge1(torch.cat([up, a], 1)))


class ViT(nn.Module):
    """Patches, a class token, transformer layers, a linear head."""

    def __init__(self, size: int, patch: int, width: int, layers: int, classes: int) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, width, patch, patch)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.position = nn.Parameter(torch.randn(1, (size // patch) ** 2 + 1, width) * 0.02)
        layer = nn.TransformerEncoderLayer(
            width, 4, 2 * width, 0.0, "gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.position
        return self.head(self.norm(self.layers(x))[:, 0])


class LSTMClassifier(nn.Module):
    """Embedding, a bidirectional LSTM of two layers, a linear head on the last step."""

    def __init__(self, words: int, width: int, classes: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.lstm = nn.LSTM(width, width, num_layers=2, bidirectional=True, batch_first=True)
        self.head = nn.Linear(2 * width, classes)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        out, _ = self.lstm(self.embed(tokens))
        return self.head(out[:, -1])


def resnet18(width: int = 4, depths: tuple[int, ...] = (1, 1), size: int = 16) -> Model:
    """A narrow ResNet-18 on `size` x `size` images."""
    torch.manual_seed(0)
    batch = {"x": torch.randn(4, 3, size, size), "labels": torch.randint(0, 5, (4,))}
    return ResNet18(width, depths, 5), batch


def unet(width: int = 4, size: int = 8) -> Model:
    """A narrow U-Net with a class per pixel."""
    torch.manual_seed(0)
    batch = {"x": torch.randn(2, 1, size, size), "labels": torch.randint(0, 2, (2, size, size))}
    return UNet(width), batch


def vit(width: int = 16, layers: int = 1, size: int = 8) -> Model:
    """A small ViT with 4 x 4 patches."""
    torch.manual_seed(0)
    batch = {"x": torch.randn(3, 3, size, size), "labels": torch.randint(0, 5, (3,))}
    return ViT(size, 4, width, layers, 5), batch


def lstm(width: int = 8, length: int = 4) -> Model:
    """A small LSTM classifier."""
    torch.manual_seed(0)
    batch = {"tokens": torch.randint(0, 20, (3, length)), "labels": torch.randint(0, 5, (3,))}
    return LSTMClassifier(20, width, 5), batch


MODELS: dict[str, Callable[[], Model]] = {
    "resnet18": resnet18,
    "unet": unet,
    "vit": vit,
    "lstm": lstm,
}
LARGER: dict[str, Callable[[], Model]] = {
    "resnet18": lambda: resnet18(16, (2, 2, 2, 2), 64),
    "unet": lambda: unet(8, 32),
    "vit": lambda: vit(64, 4, 32),
    "lstm": lambda: lstm(32, 24),
}


def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
    """Cross-entropy of the labels."""
    inputs = [value for name, value in batch.items() if name != "labels"]
    return F.cross_entropy(model(*inputs), batch["labels"])
