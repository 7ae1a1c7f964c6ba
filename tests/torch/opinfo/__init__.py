"""Measures device `neuron` with PyTorch's own operator database.

``python -m tests.torch.opinfo sweep`` runs every operator in worker processes (a crash costs one
operator, an interrupted sweep goes on where it stopped) and writes ``results.json``; the tables of
``docs/torch_support.md`` are made from it. `tests/torch/test_opinfo.py` measures a sample anew and
fails when an entry got worse.
"""
