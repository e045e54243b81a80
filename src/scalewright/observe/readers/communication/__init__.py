"""What communication libraries say: debug logs, watchdogs, benchmarks."""
