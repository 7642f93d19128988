"""What would happen if: questions about a snapshot, decided by the arbiter itself; nothing is changed (pure)."""
