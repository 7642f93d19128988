"""The command line: one file a command group, each thin - parse, call, print."""
