"""Usage of devices: records, sums by UTC day, and the monthly budgets of tenants (pure)."""
