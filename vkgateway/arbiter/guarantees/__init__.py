"""Guarantees as cells: cell sizes, bindings to nodes, usage, and reduction when nodes are missing."""
