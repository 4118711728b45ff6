"""What vLLM calls things: its limits, quantities and methods, as data."""
