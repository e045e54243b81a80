"""What this machine is: its devices, topology, calibration, and the place a question is asked about."""
