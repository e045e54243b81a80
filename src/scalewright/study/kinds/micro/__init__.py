"""Micro benchmarks as kinds of points, one file per benchmark."""
