"""Data sets and their pipelines: tables, progress and the page."""
