"""Who runs, who waits and why; pure: what is asked and what is known come in, decisions go out."""
