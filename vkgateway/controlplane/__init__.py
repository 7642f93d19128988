"""Tenant control planes: certificates, datastore tenancy, processes, and what a tenant is born with."""
