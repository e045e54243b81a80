"""Micro benchmarks: what a cost model needs to know of a device, one operation at a time."""
