"""The fixture `compare` for pytest, in a module of its own, as pytest imports it at each start."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from interop import Comparison


@pytest.fixture
def compare(request: pytest.FixtureRequest) -> Callable[..., Comparison]:
    """`interop.compare`; where the test fails, pytest shows the tables of the comparisons that disagreed."""
    import interop

    def compared(*args: Any, **kwargs: Any) -> Comparison:
        comparison = interop.compare(*args, **kwargs)
        if not comparison.agree:
            request.node.add_report_section("call", "comparison", comparison.to_markdown())
        return comparison

    return compared
