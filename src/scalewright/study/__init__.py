"""From a question to runs: points, and the one executor that runs them."""
