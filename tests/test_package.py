"""What is public, and what stays out of an import."""

import importlib.metadata
import importlib.resources
import inspect
import subprocess
import sys
import typing

import pytest
import torch

import interop
import jaxclamp

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
        code = f"import {package} as p; print(set(p.__all__) - set(dir(p)), p.__version__)"
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


def imports(statement: str, module: str) -> bool:
    """Whether running ``statement`` in a fresh process imports ``module``."""
    code = f"import sys\n{statement}\nprint({module!r} in sys.modules)"
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "True\n"


def test_jaxclamp_does_not_import_torch() -> None:
    assert not imports("import jaxclamp", "torch")
    assert imports("import torch", "torch")  # the check can see it


def test_interop_imports_torch_when_it_is_used() -> None:
    """Its command line answers without."""
    assert not imports("import interop", "torch")
    assert imports("from interop import clamp", "torch")
    assert imports("from interop import *\nclamp_, native.clamp, nn.ReLU, compare", "torch")
    with pytest.raises(AttributeError, match="module 'interop' has no attribute 'clampp'"):
        interop.clampp  # type: ignore[attr-defined]  # noqa: B018


def test_ops_alone_do_not_load_jax_extend() -> None:
    assert not imports("import jaxclamp", "jax.extend")
    assert imports("import jaxclamp\njaxclamp.min_norm", "jax.extend")
    with pytest.raises(AttributeError, match="module 'jaxclamp' has no attribute 'clampp'"):
        jaxclamp.clampp  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.thorough
def test_interop_does_not_load_dynamo() -> None:
    """It takes a second, and only torch.compile needs it."""
    assert not imports("from interop import *", "torch._dynamo")
    assert not imports("import interop, torch\ninterop.relu(torch.ones(2, requires_grad=True))", "torch._dynamo")
    assert imports("import torch._dynamo", "torch._dynamo")  # the check can see it


def test_both_packages_are_typed() -> None:
    assert importlib.resources.files("jaxclamp").joinpath("py.typed").is_file()
    assert importlib.resources.files("interop").joinpath("py.typed").is_file()
    assert importlib.metadata.version("jaxclamp")
