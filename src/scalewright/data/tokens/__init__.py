"""Token sets for training: read by memory map, in an order that a seed decides, on any number of ranks."""
