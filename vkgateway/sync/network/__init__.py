"""A tenant's Services, names and network policies, brought into line with what its compute clusters hold."""
