"""Feature checks of device `neuron`: each function is one promise to a user of PyTorch.

``python -m tests.torch.features NAME...`` executes the checks named (all if none) and prints one
line per check, so that a crash takes down only the process it happens in; `test_features.py` drives
it.
"""
