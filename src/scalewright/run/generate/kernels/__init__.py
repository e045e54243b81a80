"""Triton kernels of a decode step, and the plan that chooses between them and the vendor's library by time."""
