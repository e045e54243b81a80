"""The header of a script as sbatch reads it: its directives, their options, and what overrides them."""
