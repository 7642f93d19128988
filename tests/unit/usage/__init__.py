"""Tests of usage by day and of budgets."""
