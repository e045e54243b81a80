"""The formulas: time, memory, energy and failures of training, as sums of named terms."""
