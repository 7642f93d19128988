"""NetworkPolicies in compute clusters: each tenant's isolation, and the tenant's own."""
