"""Speed measurements against JAX and PyTorch: ``python -m benchmarks host``."""
