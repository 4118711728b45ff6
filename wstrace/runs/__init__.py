"""A trace as runs, workers and sites."""
