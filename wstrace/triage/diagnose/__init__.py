"""From facts to findings."""
