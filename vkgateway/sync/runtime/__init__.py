"""The machinery that runs reconcilers: requests, watches, the registry and the workers."""
