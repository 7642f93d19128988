"""Copies of ConfigMaps and Secrets in compute clusters."""
