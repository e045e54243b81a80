"""`scalewright bench`: one file per benchmark."""
