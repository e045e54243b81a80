"""A framework's own file for a layout: arguments, TOML, JSON or YAML."""
