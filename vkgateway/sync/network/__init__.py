"""Reconcilers of a tenant's Services, DNS names and NetworkPolicies."""
