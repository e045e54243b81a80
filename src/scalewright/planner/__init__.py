"""Predictions, the search of layouts, plans, what-if, whole runs, frameworks' files and validation."""
