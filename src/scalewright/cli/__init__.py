"""The commands: one thin file each, which reads options, calls one function and prints."""
