"""Fleets made by the trace writer, with planted faults, for sizes that nobody can run here."""
