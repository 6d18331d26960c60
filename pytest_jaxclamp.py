"""The plugin for pytest: the fixture `jaxclamp_compare`, and ``--gradients``, which checks the gradients of functions.

Pytest imports it at each start, so that it imports nothing large.
"""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from interop import Comparison

_MARKER = (
    "gradients(inputs, **options): with --gradients, check the gradients of this function at the inputs, a tuple of "
    "arrays or a function that returns one; by interop.gradcheck if there are tensors, else by jaxclamp.check_grads, "
    "which take the options."
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("jaxclamp").addoption(
        "--gradients", action="store_true", help="check the gradients of functions with @pytest.mark.gradients"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", _MARKER)


@pytest.hookimpl(tryfirst=True)  # a marked function is no test, whatever its name
def pytest_pycollect_makeitem(collector: Any, name: str, obj: Any) -> list[pytest.Item] | None:
    # Of any object in a test module, as `unittest.mock.call`, which has every attribute: those of functions are a list.
    stored = inspect.getattr_static(obj, "pytestmark", None)
    if not (isinstance(collector, pytest.Module) and isinstance(stored, list)):
        return None
    marks = [mark for mark in stored if isinstance(mark, pytest.Mark) and mark.name == "gradients"]
    return [_Gradients.from_parent(collector, name=name, function=obj, mark=mark) for mark in marks] or None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.option.gradients:
        return
    left_out = [item for item in items if isinstance(item, _Gradients)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


class _Gradients(pytest.Item):
    """The check of one function at one tuple of inputs."""

    def __init__(self, *, function: Callable[..., Any], mark: pytest.Mark, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._function, self._options = function, dict(mark.kwargs)
        self.add_marker("gradients")
        if mark.args or "inputs" not in self._options:
            raise pytest.Collector.CollectError(
                f"{self.name}: pytest.mark.gradients takes keywords, and needs inputs=(...,)."
            )
        self._inputs = self._options.pop("inputs")

    def runtest(self) -> None:
        inputs = self._inputs() if callable(self._inputs) else self._inputs
        torch = sys.modules.get("torch")  # who has not imported it has no tensors
        if torch and any(isinstance(argument, torch.Tensor) for argument in inputs):
            import interop

            interop.gradcheck(self._function, inputs, **self._options)
        else:
            import jaxclamp

            jaxclamp.check_grads(self._function, inputs, **self._options)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], *args: Any, **kwargs: Any) -> Any:
        is_finding = excinfo.errisinstance(AssertionError) or excinfo.typename == "GradcheckError"
        return str(excinfo.value) if is_finding else super().repr_failure(excinfo, *args, **kwargs)

    def reportinfo(self) -> tuple[Path, int, str]:
        code = getattr(self._function, "__code__", None)
        return self.path, code.co_firstlineno - 1 if code else 0, f"gradients of {self.name}"


@pytest.fixture
def jaxclamp_compare(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., Comparison]:
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
            call = f"jaxclamp_compare(..., case={str(file)!r})"
            request.node.add_report_section("call", "case", f"{call} has these inputs again.")
        return comparison

    return compared


@pytest.fixture
def compare(jaxclamp_compare: Callable[..., Comparison]) -> Callable[..., Comparison]:
    """The former name of `jaxclamp_compare`, kept until 0.3."""
    warnings.warn("the fixture compare is called jaxclamp_compare now", DeprecationWarning, stacklevel=1)
    return jaxclamp_compare
