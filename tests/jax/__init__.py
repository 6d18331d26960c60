"""The ops of jaxclamp, and the transformations of JAX functions."""
