"""Whole programs in torch: derivatives that are right wherever the program has one, however it is spelled."""
