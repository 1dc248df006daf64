"""`python -m tilework`."""

from tilework.cli.main import main

main()
