"""Speed measurements against JAX and PyTorch in one process: ``python -m benchmarks host``."""
