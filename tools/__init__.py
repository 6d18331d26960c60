"""What maintainers run: `make tables` and `make answers`."""
