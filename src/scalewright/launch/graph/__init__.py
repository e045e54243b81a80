"""Graphs of jobs: file, order, manifest, driver, budget."""
