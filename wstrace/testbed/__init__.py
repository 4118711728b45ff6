"""A tiny model, and a vLLM plugin that gives the CPU engine what GPU workers have."""
