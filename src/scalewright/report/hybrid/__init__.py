"""The report of a run with rollouts: lanes of time, iterations, syncs; in the terminal, as a page, as a plot."""
