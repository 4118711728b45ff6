"""From a run to findings: escapes, KV sizing, hazards, coverage."""
