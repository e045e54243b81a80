"""What a point of a study can be: how it is checked, predicted, run and read back."""
