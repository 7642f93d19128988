"""Virtual nodes: their Node objects and Leases, and the kubelet's HTTPS API with one module per endpoint."""
