"""The kinds of faults, by what they do to a run."""
