"""Whole programs: derivatives that are right wherever the function has one, however it is spelled."""
