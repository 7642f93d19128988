"""The daemon: settings to running parts, leadership, health, certificates."""
