"""Rules about how ranks meet and communicate."""
