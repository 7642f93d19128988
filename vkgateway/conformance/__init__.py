"""Kubernetes' conformance suite, in a tenant and straight on the compute cluster: images, runs, comparison."""
