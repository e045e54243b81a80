"""Where the time of a step went, rank by rank: timelines of traces, the sweep over them, variance, and predicted terms."""
