"""Weights from a trainer to engines: by peer shards, by broadcast or by file."""
