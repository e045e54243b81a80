"""Advice on where data should lie and how it should be read: striping, copying, loaders, metadata."""
