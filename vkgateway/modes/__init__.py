"""Scheduling modes of pools other than native: another scheduler of the compute cluster admits and evicts (pure)."""
