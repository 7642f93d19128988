"""Kubernetes conformance tests in a tenant and directly on the compute cluster: images, runs, comparison."""
