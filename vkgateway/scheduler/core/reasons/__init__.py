"""Pending reasons, expected starts and reports."""
