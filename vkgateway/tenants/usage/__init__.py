"""GPU-hours: records, sums by UTC day, monthly budgets, and their store."""
