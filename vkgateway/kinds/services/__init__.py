"""A tenant's Services, EndpointSlices and DNS names in compute clusters."""
