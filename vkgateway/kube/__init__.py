"""Access to API servers: client, reflector, work queue, leases, server-side apply and connection upgrades."""
