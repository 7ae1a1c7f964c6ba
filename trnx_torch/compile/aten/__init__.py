"""ATen operators as array code, one file per family; importing this fills ``registry.RULES``."""

from trnx_torch.compile.aten import (
    activation,
    contraction,
    convolution,
    factory,
    foreach,
    indexing,
    loss,
    movement,
    normalisation,
    pointwise,
    pooling,
    reduction,
    special,
)
from trnx_torch.compile.aten.registry import RULES, AtenRule, overload_name

__all__ = [
    "RULES",
    "AtenRule",
    "activation",
    "contraction",
    "convolution",
    "factory",
    "foreach",
    "indexing",
    "loss",
    "movement",
    "normalisation",
    "overload_name",
    "pointwise",
    "pooling",
    "reduction",
    "special",
]
