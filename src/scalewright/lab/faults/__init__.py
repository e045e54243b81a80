"""The fault laboratory: faults are injected into real runs, and each has a ground truth that `explain` must name."""
