"""The embedded platform, the programs that it runs and their builds, conformance tests, and the simulator."""
