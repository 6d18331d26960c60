"""Which modules of the tests are left out where torch is not installed, and how pinned versions are read."""

import ast

import pytest

from tests.support.imports import TESTS, imported, needs_torch
from tests.support.pinned import pinned


@pytest.mark.parametrize(
    ("module", "needs"),
    [
        ("fuzz/test_by_differences_torch", True),
        ("fuzz/steps_torch", True),
        ("survey/test_changes", True),  # interop alone
        ("fuzz/test_by_definition_torch", True),  # by another module of the tests
        ("jax/test_gradients", False),
        ("jax/test_min_norm", False),
        ("jax/test_ties", False),
        ("programs/test_whole_programs", False),
        ("fuzz/test_by_differences", False),
        ("project/test_imports", False),
    ],
)
def test_needs_torch(module: str, needs: bool) -> None:
    assert needs_torch(TESTS / f"{module}.py") == needs


def test_what_is_imported_with_a_module() -> None:
    text = """
import os, torch.nn as nn
from interop.survey import matrix
from . import beside
if TYPE_CHECKING:
    import jax
def function():
    import numpy
"""
    assert [*imported(ast.parse(text))] == ["os", "torch.nn", "interop.survey", "interop.survey.matrix"]


def test_pins_of_this_python() -> None:
    found = pinned("# a comment\njax==1.0; python_version < '3'\njax==2.0; python_version >= '3'\n\nJinja2==3.1\n")
    assert {name: str(requirement.specifier) for name, requirement in found.items()} == {
        "jax": "==2.0",
        "Jinja2": "==3.1",
    }
    assert str(pinned("a==1; python_version < '3.12'\na==2; python_version >= '3.12'", "3.11")["a"].specifier) == "==1"
