"""Sourced facts: accelerators, links, fabrics, systems, models, stacks, prices, grids and published runs."""
