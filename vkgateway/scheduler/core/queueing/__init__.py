"""Pending gangs, queue order, tenants' usage and limits."""
