"""How control planes run: one module a way."""
