"""Any other scheduler as the arbiter of a pool: whole gangs are passed on as pods (pure)."""
