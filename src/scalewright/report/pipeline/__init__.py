"""A pipeline in the report of a study: stages side by side, plots, curves and answers to read."""
