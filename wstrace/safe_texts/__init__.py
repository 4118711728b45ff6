"""Texts of others made safe: without secrets, and without what a CI system would obey."""
