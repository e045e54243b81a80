"""What schedulers and launchers say: lines in logs, and the output of their commands."""
