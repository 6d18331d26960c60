"""Which modules of the tests are left out where torch is not installed, and how pinned versions are read."""

import ast

import pytest
from imports import TESTS, imported, needs_torch
from pinned import pinned


@pytest.mark.parametrize(
    ("module", "needs"),
    [
        ("test_random_programs_torch", True),
        ("random_steps_torch", True),
        ("test_changes", True),  # interop alone
        ("test_fuzz_torch", True),  # by another module of the tests
        ("test_gradients", False),
        ("test_rewrite", False),
        ("test_ties", False),
        ("test_whole_programs", False),
        ("test_random_programs", False),
        ("test_imports", False),
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
    assert [*imported(ast.parse(text))] == ["os", "torch", "interop"]


def test_pins_of_this_python() -> None:
    found = pinned("# a comment\njax==1.0; python_version < '3'\njax==2.0; python_version >= '3'\n\nJinja2==3.1\n")
    assert {name: str(requirement.specifier) for name, requirement in found.items()} == {
        "jax": "==2.0",
        "Jinja2": "==3.1",
    }
