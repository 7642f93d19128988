"""State of one pool, between and during scheduling cycles."""
