"""The virtual node: its Node object and Lease, and the kubelet's HTTPS API, one file an endpoint."""
