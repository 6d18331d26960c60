"""Checks of gradients that hold at kinks: what the values say, the verdicts, and the check of JAX functions."""
