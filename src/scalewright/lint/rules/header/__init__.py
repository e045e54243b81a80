"""Rules about the header: whether sbatch reads the #SBATCH lines and their values as they are meant."""
