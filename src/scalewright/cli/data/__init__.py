"""Commands of data sets."""
