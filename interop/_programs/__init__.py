"""Whole programs in torch: derivatives that are right wherever the function has one, however it is spelled."""
