"""The schedulers that a simulation can run, each in its own module."""
