"""Whole programs: the check of their gradients."""
