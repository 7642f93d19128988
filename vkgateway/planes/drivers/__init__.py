"""Drivers of control planes: the protocol, the registry, and one package per driver."""
