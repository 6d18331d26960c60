"""No test of torch depends on what those before it have drawn."""

import pytest


@pytest.fixture(autouse=True)
def all_are_seeded(seeded: None) -> None:
    """Also where a test, or what it calls, seeds torch itself."""
