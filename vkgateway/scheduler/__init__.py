"""Scheduling of gangs in pools of shared nodes."""
