"""Reconcilers, one a kind: what a tenant asks for goes down, what became of it comes back up."""
