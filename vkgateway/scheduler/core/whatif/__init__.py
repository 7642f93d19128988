"""What-if questions about a snapshot, decided by the arbiter itself without side effects (pure)."""
