"""Engines: the frameworks that people train with, their files, their start and their logs."""
