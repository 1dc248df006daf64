"""The command line: one file per command; torch is imported only by commands that need it."""
