"""vLLM's requests for the workspace, read from its source: who asks, and what was reserved."""
