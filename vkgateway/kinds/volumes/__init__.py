"""A tenant's claims, volumes and storage classes."""
