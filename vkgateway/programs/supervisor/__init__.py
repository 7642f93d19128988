"""A small daemon that keeps a platform's processes alive; `spec` says what, `client` talks to it."""
