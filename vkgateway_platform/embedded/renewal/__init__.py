"""Automatic renewal of the platform's certificates while it runs."""
