"""Benchmarks against real API servers on this machine: `python -m bench NAME`."""
