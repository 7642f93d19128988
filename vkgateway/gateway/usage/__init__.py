"""GPU-hours by UTC day, kept in the management cluster, and the monthly budgets of tenants."""
