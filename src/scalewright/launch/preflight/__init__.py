"""Nodes checked before step 1: what is expected of them, and how the check is started."""
