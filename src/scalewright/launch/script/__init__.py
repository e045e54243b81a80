"""A request and a site become a job script: pure text."""
