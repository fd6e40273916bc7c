"""Measures what the engine takes, honestly: the product's own engine, the same work in every mode."""
