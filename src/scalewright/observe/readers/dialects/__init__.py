"""Dialects of training logs: one module for each program that writes them."""
