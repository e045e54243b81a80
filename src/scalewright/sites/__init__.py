"""Site profiles: one TOML per cluster beside this file, their types, and how they are found."""
