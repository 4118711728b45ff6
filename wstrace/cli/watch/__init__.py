"""`wstrace watch`: a run while it happens, from its append-only files."""
