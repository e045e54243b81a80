"""Rules about how ranks are started: launchers, the number of processes, their numbers, and Ray."""
