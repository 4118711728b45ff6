"""Logs and pasted reports become the same findings that a trace gives."""
