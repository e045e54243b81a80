"""Scalewright plans, launches, measures and explains the training of large models on HPC clusters."""

__version__ = "0.1.0"
