"""The known sites: worst-case rules read from vLLM's source by hand, as data."""
