"""Victim search: preemption candidates, their cost, the cheapest victims and reprieve."""
