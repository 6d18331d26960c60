"""Functions and models beside their ports."""
