"""The tests, by subject: one question per file."""
