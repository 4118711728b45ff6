"""Requests that reach the corners of the scheduler, sent to a running server."""
