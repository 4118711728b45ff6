"""Scenarios on a real GPU, each checked against what really happened; see docs/gpu.md."""
