"""The trace format: its records, the files of a run, reading and cleaning them."""
