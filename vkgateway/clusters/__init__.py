"""Compute clusters: controller, connection, watches, and the capacity of pools."""
