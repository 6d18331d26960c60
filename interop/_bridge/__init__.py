"""JAX functions on torch's tape: arrays, calls, derivatives, graphs, and the ops of jaxclamp as torch has them."""
