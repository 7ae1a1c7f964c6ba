"""PyTorch on trnx: device `neuron` and the `neuron` backend of `torch.compile`."""
