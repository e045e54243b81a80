"""Advice about a queue: which request gives the result soonest, and why a job waits."""
