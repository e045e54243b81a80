"""An inference engine: continuous batching over a paged cache, with the same layers as `bench language`."""
