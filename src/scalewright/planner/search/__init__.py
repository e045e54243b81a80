"""The search of layouts: space, constraints, ranking, why others lost."""
