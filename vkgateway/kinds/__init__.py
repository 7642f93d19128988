"""Kinds of objects that are forwarded or mirrored: a folder each, with reconciler and translation."""
