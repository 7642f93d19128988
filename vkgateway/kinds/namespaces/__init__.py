"""Compute namespaces of a tenant, and the objects that isolate them."""
