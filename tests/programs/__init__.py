"""Derivatives of whole programs, in JAX and in torch."""
