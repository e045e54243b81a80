"""Run directories read back: events collected, rolled up, summed up and fitted. Starts nothing."""
