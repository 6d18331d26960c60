"""The same ops on torch's tensors: by JAX on torch's tape, and by torch's own kernels."""
