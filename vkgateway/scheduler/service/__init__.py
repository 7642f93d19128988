"""Input and output of the arbiter: the tenants' pods as gangs, its cycles, and its decisions carried out."""
