"""Translation between a tenant pod and its compute pod (pure)."""
