"""Which modules of the tests need torch, by what they import."""

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"


@functools.cache
def needs_torch(module: Path) -> bool:
    """Say whether a module imports torch or interop, by itself or by another module of the tests."""
    names = set(imported(ast.parse(module.read_text("utf-8"))))
    of_tests = [ROOT.joinpath(*name.split(".")).with_suffix(".py") for name in names if name.startswith("tests.")]
    return bool({name.partition(".")[0] for name in names} & {"torch", "interop"}) or any(
        needs_torch(file) for file in of_tests if file.exists()
    )


def imported(tree: ast.Module) -> Iterator[str]:
    """Yield what is imported with the module, not in its functions; ``from a import b`` may be the module ``a.b``."""
    for node in tree.body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
