"""The practice cluster: a real Slurm on one host, and shaped network namespaces."""
