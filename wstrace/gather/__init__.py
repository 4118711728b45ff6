"""Traces brought together from folders, object stores and the nodes of a Ray cluster."""
