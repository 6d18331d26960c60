"""What is public, and what stays out of an import."""

import ast
import importlib
import importlib.metadata
import importlib.resources
import importlib.util
import inspect
import itertools
import re
import subprocess
import sys
import tomllib
import typing
from pathlib import Path
from typing import Any

import pytest
import torch
from packaging.requirements import Requirement

import interop
import jaxclamp
from interop.cli.packages import _EXTRAS
from interop.frameworks.registry import ADAPTERS

ROOT = Path(__file__).parents[2]
CLI = [*(ROOT / "interop" / "cli").glob("*.py"), ROOT / "interop" / "__main__.py"]
REQUIRE = re.compile(r'require\(("[^)*]*)\)')
PAIR = tuple[torch.Tensor, torch.Tensor]


@pytest.mark.parametrize("package", [jaxclamp, interop], ids=lambda package: package.__name__)
def test_all_lists_what_is_public(package: object) -> None:
    modules = type(sys)
    for name in package.__all__:  # type: ignore[attr-defined]
        getattr(package, name)  # some are imported when they are used
    public = {n for n, v in vars(package).items() if not n.startswith("_") and not isinstance(v, modules)}
    listed = [n for n in package.__all__ if not isinstance(getattr(package, n), modules)]  # type: ignore[attr-defined]
    assert sorted(listed) == sorted(public - {"TYPE_CHECKING"})


@pytest.mark.thorough
def test_what_is_public_can_be_completed() -> None:
    for package in ("jaxclamp", "interop"):
        code = f"import {package} as p; print({{n for n in dir(p) if n[:2] != '__'}} ^ set(p.__all__), p.__version__)"
        shown = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
        assert shown == f"set() {importlib.metadata.version('jaxclamp')}\n"


def test_types_of_the_torch_ops_can_be_read() -> None:
    """They name tensors, where those of jaxclamp name arrays."""
    for name in interop.TORCH_OPS:
        hints = typing.get_type_hints(getattr(interop, name))
        assert hints["input"] is torch.Tensor
        assert hints["return"] in (torch.Tensor, PAIR, torch.Tensor | PAIR), name
        assert hints.keys() - {"return"} == inspect.signature(getattr(interop, name)).parameters.keys()
    assert typing.get_type_hints(interop.clamp)["min"] == torch.Tensor | float | None


def test_every_op_is_public_in_both_packages() -> None:
    assert set(jaxclamp.OPS) <= set(jaxclamp.__all__)
    assert set(jaxclamp.OPS) <= set(interop.__all__)
    assert {"clip", "hard_tanh"} <= set(interop.__all__)
    assert interop.clip is interop.clamp


@pytest.mark.parametrize(
    ("former", "home", "names"),
    [
        ("parity", "survey.matrix", "Answer Row matrix"),
        ("parity.rows", "survey.matrix", "FRAMEWORKS Answer Row absent counterparts matrix"),
        ("parity.frameworks", "frameworks.base", "Adapter Array Convertible Framework Question total weighted_total"),
        ("parity.frameworks", "frameworks.jax", "Jax"),
        ("parity.frameworks", "frameworks.torch", "Torch leaves_behind"),
        ("parity.frameworks", "frameworks.registry", "ADAPTERS CONVERTIBLES frameworks_of hint_at_numpy"),
        ("parity.answers", "survey.records", "FOLDER MODES Cell Record Source choices read record_of recorded"),
        ("parity.render", "survey.show.render", "AGREES DISAGREES FORMATS as_in_a_call at drawn tallies"),
        ("parity.probe", "comparison.probe", "Case Change Probe Probed"),
        ("porting.compare_models", "comparison.models.compare_models", "compare_models"),
        ("porting.report", "comparison.models.report", "ModelComparison"),
        ("porting.cause", "comparison.models.cause", "Cause LayerPair"),
        ("porting.layers", "comparison.models.layers", "Layer Point"),
        ("porting.comparison", "comparison.models.judgements", "Judged"),
        ("porting.mapping", "comparison.models.mapping", "Pair ParameterMapping"),
    ],
)
def test_former_places_have_the_same_objects(former: str, home: str, names: str) -> None:
    here, there = (importlib.import_module(f"interop.{module}") for module in (former, home))
    for name in names.split():
        assert getattr(here, name) is getattr(there, name)


def test_the_former_place_of_the_matrix_has_its_former_names() -> None:
    from interop.parity import rows as former
    from interop.survey import matrix

    assert (former.OURS, former.THEIRS) == (matrix.PACKAGES, matrix.UNMODIFIED)
    assert former.theirs("jax") is matrix.load("jax")


def test_the_former_place_of_the_oracle_has_the_same_functions() -> None:
    from interop.parity import oracle as former
    from jaxclamp._shared import oracle

    for name in former.__all__:
        assert getattr(former, name) is getattr(oracle, name)


def loaded_after(*statements: str) -> list[set[str]]:
    """Return which modules of a list are loaded after each statement, in a fresh process that runs them in order."""
    watched = {"torch", "torch._dynamo", "jax.extend", *ADAPTERS} - {"jax"}
    lines = "".join(f"{statement}\nprint(*{watched} & sys.modules.keys())\n" for statement in statements)
    command = [sys.executable, "-c", f"import sys\n{lines}"]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return [set(line.split()) for line in printed.splitlines()]


@pytest.mark.thorough
def test_modules_are_loaded_when_they_are_used() -> None:
    """The ops of JAX need no `jax.extend`, the command line no torch, calls no Dynamo, and none a further framework."""
    calls = "x = torch.ones(2, requires_grad=True)\nmaximum(x, 0.0), hardtanh(x, x[0], x[1])"
    assert loaded_after(
        "import jaxclamp",
        "jaxclamp.min_norm",
        "import interop",
        f"from interop import *\nimport torch, interop.survey.matrix\nclamp_, native.clamp, nn.ReLU, compare\n{calls}",
        "import torch._dynamo",
    ) == [set(), {"jax.extend"}, {"jax.extend"}, {"jax.extend", "torch"}, {"jax.extend", "torch", "torch._dynamo"}]


@pytest.mark.parametrize("package", [jaxclamp, interop], ids=lambda package: package.__name__)
def test_a_name_that_a_package_does_not_have(package: Any) -> None:
    with pytest.raises(AttributeError, match=f"module '{package.__name__}' has no attribute 'clampp'"):
        package.clampp  # noqa: B018


def test_extras_have_what_the_commands_ask_for() -> None:
    """With the extras within an extra."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]

    def packages(extra: str) -> set[str]:
        requirements = [Requirement(text) for text in extras[extra]]
        return {r.name for r in requirements}.union(*(packages(inner) for r in requirements for inner in r.extras))

    asked = [ast.literal_eval(f"({arguments},)") for file in CLI for arguments in REQUIRE.findall(file.read_text())]
    assert len(asked) > 8
    for package in set(itertools.chain.from_iterable(asked)):
        assert package in packages(_EXTRAS.get(package, "cli")), package
    assert packages("cli") < packages("plot")


def test_both_packages_are_typed() -> None:
    assert importlib.resources.files("jaxclamp").joinpath("py.typed").is_file()
    assert importlib.resources.files("interop").joinpath("py.typed").is_file()
    assert importlib.metadata.version("jaxclamp")
