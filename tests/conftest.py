"""What holds for all tests: hypothesis draws the same examples in every run and does not look at the clock."""

from hypothesis import settings

settings.register_profile("repeatable", derandomize=True, deadline=None, max_examples=50)
settings.load_profile("repeatable")
