"""Whole models beside their ports: parameters mapped, values and gradients compared at every module boundary."""
