"""Tables of the catalogue."""
