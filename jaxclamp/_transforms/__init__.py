"""Transformations of JAX functions that exist already: `min_norm` and `ties`."""
