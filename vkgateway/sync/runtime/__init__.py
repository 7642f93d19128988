"""Runtime of the reconcilers: requests, watches, the registry and the workers."""
