"""Which modules of the tests need torch, by what they import."""

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parent


@functools.cache
def needs_torch(module: Path) -> bool:
    """Whether a module imports torch or interop, by itself or by another module of the tests."""
    names = set(imported(ast.parse(module.read_text("utf-8"))))
    own = [TESTS / f"{name}.py" for name in names]
    return bool(names & {"torch", "interop"}) or any(needs_torch(file) for file in own if file.exists())


def imported(tree: ast.Module) -> Iterator[str]:
    """The packages and modules that are imported as the module itself is: not in its functions."""
    for node in tree.body:
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.partition(".")[0]
