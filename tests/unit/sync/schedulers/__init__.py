"""Tests of vkgateway.sync.schedulers."""
