"""The way to any API server: client, watch and store, fair work queue, leases, apply, connection upgrade."""
