"""Readers: files of any program become facts. Content decides which reader takes a file, never its name."""
