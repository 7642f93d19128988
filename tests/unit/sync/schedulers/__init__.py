"""Tests of vkgateway.scheduler.backends."""
