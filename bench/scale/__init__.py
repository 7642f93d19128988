"""scale: a trace of Jobs on a large hollow compute cluster, and in a simulation of the same cluster."""
