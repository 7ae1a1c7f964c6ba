"""Entry point that `import torch` calls; it must never be able to break `import torch`."""

from __future__ import annotations

import importlib
import warnings


def autoload() -> None:
    """Import trnx_torch so that device `neuron` exists; a failure becomes one warning."""
    try:
        importlib.import_module("trnx_torch")
    except Exception as error:  # whatever is wrong here must not reach `import torch`
        warnings.warn(
            f"device 'neuron' is not available in this process: {error}",
            RuntimeWarning,
            stacklevel=2,
        )
