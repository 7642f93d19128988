"""Reconcilers of tenants: they forward objects to compute clusters, and mirror status to tenant clusters."""
