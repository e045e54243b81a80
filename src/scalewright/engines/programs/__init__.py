"""Programs that run in an engine's own environment. They import that engine, and nothing of scalewright."""
