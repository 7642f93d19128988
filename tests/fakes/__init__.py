"""Stand-ins for real components that any test may use."""
