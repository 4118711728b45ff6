"""The wrappers that stand around vLLM's and PyTorch's methods."""
