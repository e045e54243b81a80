"""Rules about the end of a job: signals, traps, requeueing and exit codes."""
