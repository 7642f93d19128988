"""Fakes of real components for any test."""
