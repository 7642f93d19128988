"""The kubectl plugin `kubectl vkgateway`: commands for a tenant's cluster and for the management cluster."""
