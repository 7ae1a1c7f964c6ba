"""trnx: array functions and PyTorch models as Trainium tile kernels, on any machine."""

from trnx.core.version import __version__ as __version__
