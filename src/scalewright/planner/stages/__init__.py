"""Stages other than pre-training a transformer: generation, RL, vision."""
