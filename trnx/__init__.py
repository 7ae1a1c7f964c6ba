"""trnx: array functions and PyTorch models as Trainium tile kernels, on any machine."""

__version__ = "0.1.0"
