"""A compute cluster as the reconcilers see it: what is watched there, whose that is, and who hears of changes."""
