"""Lanes of tests: their table, the command that runs them, and the report of their times."""
