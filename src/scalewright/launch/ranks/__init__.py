"""Ranks started on this machine, in an allocation, or by torchrun and srun."""
