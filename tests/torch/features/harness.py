"""What feature checks share: the table of checks and three comparisons."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch

CHECKS: dict[str, Callable[[], None]] = {}
DEVICE = "neuron"


def check(function: Callable[[], None]) -> Callable[[], None]:
    """Enter a check under its name."""
    CHECKS[function.__name__] = function
    return function


def same(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """``actual`` is on the device and close to ``expected``."""
    assert actual.device.type == DEVICE, actual.device
    torch.testing.assert_close(actual.detach().cpu(), expected.detach(), rtol=1e-5, atol=1e-6)


def raises(kind: type[Exception], text: str, function: Callable[[], object]) -> None:
    """``function`` raises with this text."""
    with pytest.raises(kind, match=re.escape(text)):
        function()
