"""Decisions of the scheduler: pure functions of pools, quotas and gangs."""
