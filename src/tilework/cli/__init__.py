"""The command line: one file per command; torch is imported only by the command that needs it."""
