"""How the code lies: imports without a cycle, private names in one file each, short ways to JAX, fresh stubs."""

import ast
import functools
import graphlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import pytest
import torch

from interop._bridge import flat
from interop._bridge.ops import TorchOp
from jaxclamp import OPS
from tools import stubs

ROOT = Path(__file__).parents[2]
MODULES = {
    ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): file
    for package in ("jaxclamp", "interop")
    for file in (ROOT / package).rglob("*.py")
}


@functools.cache
def code_of(file: Path) -> str:
    """Without comments."""
    return ast.unparse(ast.parse(file.read_text("utf-8")))


def imported(tree: ast.AST) -> Iterator[str]:
    """The modules of ours that a module imports, wherever in it, but for type checkers alone."""
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in MODULES)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                submodule = f"{node.module}.{alias.name}"
                found = submodule if submodule in MODULES else node.module
                if found in MODULES:
                    yield found


def cycle(graph: dict[str, set[str]]) -> list[str]:
    """The modules of a cycle, if there is one."""
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        found: list[str] = error.args[1]
        return found
    return []


def test_no_import_cycle() -> None:
    """A package that is imported as a whole, as the command line does, is no cycle: nothing in it imports that."""
    graph = {name: set(imported(ast.parse(file.read_text("utf-8")))) for name, file in MODULES.items()}
    assert sum(map(len, graph.values())) > 100  # the imports are seen
    assert cycle(graph) == []
    assert cycle(graph | {"interop._bridge.flat": {"interop._bridge.tape"}})  # the check can fail


def test_jaxclamp_knows_nothing_of_interop() -> None:
    for name, file in MODULES.items():
        if name.startswith("jaxclamp"):
            assert not any(m.startswith("interop") for m in imported(ast.parse(file.read_text("utf-8")))), name


def test_what_is_shared_knows_no_framework() -> None:
    """But for the ties of all ops, which the ops name."""
    framework = re.compile(r"^(from|import) (jax|torch)\b", re.MULTILINE)
    knowing = {
        name
        for name, file in MODULES.items()
        if name.startswith("jaxclamp._shared.") and framework.search(code_of(file))
    }
    assert knowing == {"jaxclamp._shared.tie_cases"}  # which shows that the check can see one


PRIVATE = {
    "interop/_torch/private_api.py": re.compile(r"\btorch(\.\w+)*\._(?!_)\w+"),
    "interop/_bridge/private_jax.py": re.compile(r"\bjax(lib)?(\.\w+)*\._(?!_)\w+"),
}


@pytest.mark.parametrize("home", PRIVATE)
def test_private_names_of_others_are_in_one_file(home: str) -> None:
    pattern = PRIVATE[home]
    for file in MODULES.values():
        assert bool(pattern.search(code_of(file))) == (file == ROOT / home), file


def frames_of_ours() -> list[str]:
    """The functions of ours that the caller of this is within."""
    frame: Any = sys._getframe(1)
    names = []
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith(("interop", "jaxclamp")):
            names.append(frame.f_code.co_qualname)
        frame = frame.f_back
    return names


def test_a_call_reaches_jax_within_six_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forward and backward, recorded and not; else tracebacks and profiles are hard to read."""
    depths: dict[str, list[str]] = {}

    def compile_and_look(function: Any, name: str) -> Any:
        compiled = jax.jit(function)

        def call(*args: Any) -> Any:
            depths[name] = frames_of_ours()
            return compiled(*args)

        return call

    monkeypatch.setattr(flat, "_compile", compile_and_look)
    op = TorchOp(OPS["clamp"], OPS["clamp"].function)
    x = torch.tensor([0.0, 1.0])
    for _ in range(2):  # the first call of a kind makes a plan
        depths.clear()
        y = op(x.requires_grad_(), 0.0, 6.0)
        torch.autograd.grad(y.sum(), x)
    assert set(depths) == {"clamp", "the gradient of clamp"}
    assert all(len(frames) <= 5 for frames in depths.values()), depths  # one more in the public function
    assert all(frames for frames in depths.values())


def test_stubs_are_fresh() -> None:
    """What they say to a type checker, `typed_use.py` has."""
    for file, text in stubs.stubs().items():
        assert file.read_text("utf-8") == text, "run `make tables`"
