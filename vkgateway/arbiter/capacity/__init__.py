"""Node resources: what nodes have and have left, which shapes fit where, when pods end, and placement."""
