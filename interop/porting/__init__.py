"""Whole models beside their ports: parameters mapped, values and gradients at every module boundary, the first cause."""
