"""Narrow typed views of Kubernetes objects, the API types of vkgateway, quantities and names. Pure."""
