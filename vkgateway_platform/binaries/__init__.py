"""Sources of programs: a named directory, PATH, the cache, the official release, a build from the Go module proxy."""
