"""The fixture `compare` for pytest, in a module of its own, as pytest imports it at each start."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from interop import Comparison


@pytest.fixture
def compare(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., Comparison]:
    """Compare two functions by `interop.compare`.

    Where the test fails, pytest shows the tables of the comparisons that disagreed, and the files of the cases that a
    probe found.
    """
    import interop

    def compared(*args: Any, **kwargs: Any) -> Comparison:
        comparison = interop.compare(*args, **kwargs)
        if not comparison.agree:
            request.node.add_report_section("call", "comparison", comparison.to_markdown())
        if comparison.probed and comparison.probed.case:
            file = tmp_path / f"case-{len(list(tmp_path.glob('case-*.npz')))}.npz"
            comparison.probed.case.save(file)
            request.node.add_report_section("call", "case", f"compare(..., case={str(file)!r}) has these inputs again.")
        return comparison

    return compared
