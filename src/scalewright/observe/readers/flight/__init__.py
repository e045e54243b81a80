"""Dumps of PyTorch's flight recorder, as pickles and as JSON."""
