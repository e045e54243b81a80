"""What to ask a queue for, and why a job waits."""
