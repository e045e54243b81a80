"""Resolved settings of the stages that train a reasoning model."""
