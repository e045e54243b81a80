"""Answers as HTML for notebooks, with the core's dependencies alone."""
