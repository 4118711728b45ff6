"""Pure functions from a trace to findings: the diff, accounting, hazards."""
