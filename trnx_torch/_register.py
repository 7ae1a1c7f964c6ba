"""Tells torch that the name `neuron` exists. Cheap, and safe while torch is still importing."""

from __future__ import annotations

import torch

_registered = False


def register() -> None:
    """Name the private device `neuron`, and install `torch.neuron` and the tensor methods.

    Raises:
        RuntimeError: another package has taken torch's one private device in this process.
    """
    global _registered
    if _registered:
        return
    taken = torch._C._get_privateuse1_backend_name()
    if taken not in ("privateuseone", "neuron"):
        raise RuntimeError(
            f"torch's private device already belongs to '{taken}', and a process has only one. "
            "Use trnx_torch in a process of its own."
        )
    torch.utils.rename_privateuse1_backend("neuron")
    from trnx_torch import device
    from trnx_torch.dlpack import install as install_dlpack
    from trnx_torch.late_import import when_imported
    from trnx_torch.printing import install as install_printing
    from trnx_torch.sharing import install as install_sharing

    torch._register_device_module("neuron", device)
    torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)
    install_dlpack()
    install_printing()
    install_sharing()
    when_imported("torch._dynamo.device_interface", _tell_dynamo)
    when_imported("torch._inductor.codegen.common", _tell_inductor)
    _registered = True


def _tell_dynamo() -> None:
    from trnx_torch import dynamo

    dynamo.register()


def _tell_inductor() -> None:
    from trnx_torch import dynamo

    dynamo.refuse_inductor()
