"""Everything between "sbatch accepted" and "step 1 is healthy": who sits where, over what, how fast, and who is wrong.

`gather` reads a node, `measure` times it, `rules` judges, `verdict` decides, `check` runs them in that order.
"""
