"""The platform's certificates are renewed by itself, for as long as it runs."""
