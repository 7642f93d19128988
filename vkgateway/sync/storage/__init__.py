"""A tenant's claims, volumes and storage classes, brought into line with what its compute clusters hold."""
