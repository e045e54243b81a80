"""Reasoning models are trained here: losses, trainer, rollouts and stages."""
