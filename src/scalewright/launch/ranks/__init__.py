"""Starting ranks: on this machine, in an allocation, or from outside by torchrun or srun."""
