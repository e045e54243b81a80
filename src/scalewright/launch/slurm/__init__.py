"""Slurm's commands, job states and array task ranges, as text in and text out."""
