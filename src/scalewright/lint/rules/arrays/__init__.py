"""Rules about job arrays."""
