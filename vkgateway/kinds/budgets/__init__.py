"""PodDisruptionBudgets in compute clusters."""
