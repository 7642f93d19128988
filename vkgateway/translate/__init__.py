"""Pure translation between tenant and compute clusters: objects, status and policy."""
