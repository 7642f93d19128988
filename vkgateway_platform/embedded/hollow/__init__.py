"""Hollow GPU nodes: KWOK, its configuration, and the Node objects that it simulates."""
