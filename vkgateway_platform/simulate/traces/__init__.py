"""Sources of jobs: generators, and readers of trace formats. They get text, not files."""
