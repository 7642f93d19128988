"""The arbiter: decisions of the scheduler as pure functions of pools, quotas and gangs."""
