"""Faults on purpose, and what must stay true whatever happens."""
