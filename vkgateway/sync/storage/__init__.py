"""Reconcilers of a tenant's claims, volumes and storage classes."""
