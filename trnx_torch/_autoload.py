"""Entry point that `import torch` calls; it must never be able to break `import torch`."""

from __future__ import annotations

import importlib
import warnings


def autoload() -> None:
    """Make device `neuron` known to torch; a failure becomes one warning.

    An extension that is built already is loaded; one that is not is compiled at the first use of
    the device, never here.
    """
    try:
        importlib.import_module("trnx_torch._register").register()
        importlib.import_module("trnx_torch._loader").load_if_built()
    except Exception as error:  # whatever is wrong here must not reach `import torch`
        warnings.warn(
            f"device 'neuron' is not available in this process: {error}",
            RuntimeWarning,
            stacklevel=2,
        )
