"""Discrete-event simulation of the arbiter, and of other schedulers, over traces of work (pure)."""
