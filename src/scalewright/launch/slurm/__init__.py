"""Slurm as text: its commands, its states, its sets of array tasks."""
