"""Rules about shell text that does not do what it seems to do."""
