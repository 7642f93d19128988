"""Pools that another scheduler runs: Kueue, Volcano, and any other."""
