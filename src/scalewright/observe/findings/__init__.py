"""Rules that say what limits or ended a run, with evidence, advice and the gain to expect."""
