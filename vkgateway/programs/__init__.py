"""Programs that the platform runs: how they are obtained, and the supervisor that keeps them running."""
