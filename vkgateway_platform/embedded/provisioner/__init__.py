"""Storage of the embedded platform: volumes that are directories of this machine, created for claims and deleted after
them.

A separate program of the compute cluster, without knowledge of tenants; to the gateway it is like the provisioner of
any cluster.
"""
