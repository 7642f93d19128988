"""Claims, volumes and storage classes between a tenant and its compute clusters."""
