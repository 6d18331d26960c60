"""Whole programs in torch: derivatives that are right wherever the function has one, and a check of gradients."""
