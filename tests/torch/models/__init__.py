"""Models of ordinary size and kind that must train on `neuron` as they do on the CPU."""
