"""One small module for each engine: what of a request it can be told, and the files and flags that tell it."""
