"""The command line: what a user types, and one line for whatever goes wrong."""

from cotune.cli.entry import main

__all__ = ["main"]
