"""State of one compute cluster as the reconcilers see it: watches, ownership of objects, and change notifications."""
