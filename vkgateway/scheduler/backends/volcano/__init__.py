"""Volcano as the arbiter of a pool: its objects, what their states mean, and its configuration (pure)."""
