"""Tenants: acceptance, controller, runtime, removal, usage and budgets."""
