"""The embedded platform's storage: volumes that are folders of this machine, made for claims and removed after them.

A program of its own beside the compute cluster, which knows nothing of tenants; the gateway meets it as it would meet
the provisioner of any cluster.
"""
