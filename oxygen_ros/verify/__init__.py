"""
Compares a model with golden vectors of the implementation that it follows, through the product's own engine and cache.

A case directory holds `config.json`, weights, `inputs.safetensors` and `expected_*.safetensors`; the layout of those is
described in doc/verify.md.
"""
