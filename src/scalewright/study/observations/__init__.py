"""Published observations held against predictions, and against what a run of the stages measured."""
