"""The body of a script as the shell reads it: its syntax, the walk over it, words and launchers."""
