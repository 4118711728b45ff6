"""A run for other tools: Prometheus, Perfetto, tables."""
