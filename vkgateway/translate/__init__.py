"""Tenant objects to compute objects, compute status to tenant status, and policy. Pure."""
