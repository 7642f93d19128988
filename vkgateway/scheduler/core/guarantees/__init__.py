"""Guarantees: cell sizes, use on nodes, refusals, and reduction when nodes are missing."""
