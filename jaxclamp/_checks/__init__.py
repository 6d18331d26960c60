"""The check of gradients of JAX functions; what values say of a gradient, and the verdicts, are in ``_shared``."""
