"""The phases of a scheduling cycle, each a function over the cycle's state."""
