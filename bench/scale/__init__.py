"""scale: a trace of Jobs on a large hollow compute cluster, and in the simulation of the same cluster."""
