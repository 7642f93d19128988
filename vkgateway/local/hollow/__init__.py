"""Hollow GPU nodes: KWOK, what it is told, and the Node objects it plays."""
