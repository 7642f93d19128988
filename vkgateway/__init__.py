"""A Kubernetes for every team, one pool of GPUs below."""
