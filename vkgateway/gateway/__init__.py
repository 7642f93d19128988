"""The daemon: Tenant and ComputeCluster controllers, wired to control planes, virtual nodes and sync."""
