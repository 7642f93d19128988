"""The programs that the platform runs: where they come from and who keeps them alive."""
