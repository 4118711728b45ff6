"""Runs inside vLLM's processes: plugin entry, hooks, phases, call sites, the file writer."""
