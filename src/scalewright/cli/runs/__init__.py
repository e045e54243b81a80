"""`scalewright run`: run directories that were not started here."""
