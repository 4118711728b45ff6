"""The work of `wstrace fleet`: one source at a time, in processes or on a Ray cluster."""
