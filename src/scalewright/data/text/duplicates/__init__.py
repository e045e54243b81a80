"""Duplicates: equal texts and addresses, near duplicates by MinHash, and which document of a cluster stays."""
