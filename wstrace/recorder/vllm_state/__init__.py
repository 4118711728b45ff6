"""The readers of vLLM's own fields, live objects only read."""
