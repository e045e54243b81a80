"""Texts made alike and filtered: NumPy over batches of documents, so that one core does many megabytes a second."""
