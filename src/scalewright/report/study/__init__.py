"""A study as tables, plots and one page."""
