"""Tables about jobs, sites, scripts, nodes and the practice cluster."""
