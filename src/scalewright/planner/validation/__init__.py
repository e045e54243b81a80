"""Predictions held against published runs."""
