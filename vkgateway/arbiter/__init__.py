"""The arbiter: which gangs start, wait or are evicted. Pure: snapshots in, decisions out."""
