"""Eager device kernels: formulas compiled once per operator, dtypes and rank, for every shape."""

from __future__ import annotations

_registered = False


def register() -> None:
    """Registers every native eager kernel with the extension; runs once."""
    global _registered
    if _registered:
        return
    _registered = True
    from trnx_torch.eager import (
        cumulative,
        decomposed,
        derived,
        factories,
        indexing,
        loss,
        matmul,
        movement,
        ordering,
        pointwise,
        program,
        random,
        reduction,
        resample,
        windows,
    )

    pointwise.register()
    reduction.register()
    matmul.register()
    loss.register()
    derived.register(pointwise.DEFINED)
    for family in (movement, factories, indexing, ordering, cumulative, random, windows, resample):
        family.register()
    program.register()
    # PyTorch's decompositions take what is left.
    decomposed.register()
