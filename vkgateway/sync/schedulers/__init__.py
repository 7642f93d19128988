"""Schedulers of compute clusters as arbiters of pools: their part of a cycle, and their objects."""
