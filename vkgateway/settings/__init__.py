"""The gateway's settings: keys, file and validation."""
