"""Tests of the scheduling modes of pools."""
