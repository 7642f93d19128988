"""Admission: which pods of the tenants may start, where, and which must go; asked of the arbiter, for all tenants."""
