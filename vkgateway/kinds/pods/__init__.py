"""Pod life cycle: the record of a pod's state, the table of instructions for each record, and their execution."""
