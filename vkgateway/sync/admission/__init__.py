"""Admission of the tenants' pods by the arbiter: which pods start, where, and which are evicted."""
