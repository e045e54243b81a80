"""A training run made ready: configuration complete, its length predicted, nothing started."""
