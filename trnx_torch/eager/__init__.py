"""Eager device kernels: formulas compiled once per operator, dtypes and rank, for every shape."""

from __future__ import annotations

_registered = False


def register() -> None:
    """Registers every native eager kernel with the extension; runs once."""
    global _registered
    if _registered:
        return
    _registered = True
    from trnx_torch.eager import loss, matmul, pointwise, reduction

    pointwise.register()
    reduction.register()
    matmul.register()
    loss.register()
