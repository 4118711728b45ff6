"""Worst cases: limits, inference, grades, and the known sites."""
