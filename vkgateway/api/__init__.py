"""Narrow typed views of Kubernetes objects, API types of vkgateway, quantities and names. Pure."""
