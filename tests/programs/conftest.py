"""No test of torch depends on what those before it have drawn."""

import pytest

from tests.support.imports import needs_torch


@pytest.fixture(autouse=True)
def all_of_torch_are_seeded(request: pytest.FixtureRequest) -> None:
    """Also where a test, or what it calls, seeds torch itself."""
    if needs_torch(request.path):
        request.getfixturevalue("seeded")
