"""`python -m scalewright`: the command line."""

from scalewright.cli.main import main

main()
