"""What was understood of a run, whatever it was read from. Readers fill it; findings and post-mortems read it."""
