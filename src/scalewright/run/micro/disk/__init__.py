"""Benchmarks of storage and checkpoints."""
