"""Tenant control planes: credentials, datastore tenancy, templates, and the drivers that run them."""
