"""A small daemon that keeps the processes of a platform running; `spec` describes them, `client` controls it."""
