"""Where the time of a step went, rank by rank: timelines, the sweep over them, variance, predicted terms."""
