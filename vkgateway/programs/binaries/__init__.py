"""Where programs come from: a named folder, PATH, the cache, the official release, or a build from the Go proxy."""
