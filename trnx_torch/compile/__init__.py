"""The ``neuron`` backend of ``torch.compile``.

``backend`` takes Dynamo's graph through AOTAutograd; ``importer`` turns each resulting forward or
backward graph into a Program by the rules in ``aten/``; ``runner`` calls the compiled program on
the tensors' memory.
"""

from trnx_torch.compile.backend import backend
from trnx_torch.compile.errors import UnsupportedOpError

__all__ = ["UnsupportedOpError", "backend"]
