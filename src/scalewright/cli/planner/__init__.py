"""Commands that ask the planner: catalog, predict, plan, validate."""
