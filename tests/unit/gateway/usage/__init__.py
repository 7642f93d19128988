"""Tests of the usage that the leader counts and stores."""
