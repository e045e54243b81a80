"""Rules about the software in a job: what it installs, loads and contains."""
