"""What this machine is: its devices, topology, calibration, and the place that a question is about."""
