"""Hostile input for everything that wstrace reads: `scripts/fuzz TARGET`."""
