"""The trace format: its records, the files of a run, reading them, and redaction."""
