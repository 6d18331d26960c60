"""Transformations of JAX functions as they are written: `min_norm` and `as_of`, `ties` and `count_ties`."""
