"""Where jobs come from: generators and readers of trace formats. They get text, not files."""
