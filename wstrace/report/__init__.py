"""Reporters, one a module."""
