"""GPU-hours by UTC day, counted by the leader and kept in the management cluster, and the condition WithinBudget."""
