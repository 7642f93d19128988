"""The kubelet endpoint of the hollow nodes: logs, attach, and exec in a sandbox, for the compute API server only."""
