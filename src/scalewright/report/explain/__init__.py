"""Findings for people and for machines: the terminal, a document, a page."""
