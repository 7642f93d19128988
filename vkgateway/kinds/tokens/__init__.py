"""Service account tokens of compute pods."""
