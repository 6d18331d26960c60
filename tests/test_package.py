"""What is public, what stays out of an import, and that the README tells the truth."""

import contextlib
import importlib.metadata
import importlib.resources
import importlib.util
import io
import re
import subprocess
import sys
from pathlib import Path

import pytest

import interop
import jaxclamp

README = Path(__file__).parent.parent / "README.md"


@pytest.mark.parametrize("package", [jaxclamp, interop], ids=lambda package: package.__name__)
def test_all_lists_what_is_public(package: object) -> None:
    modules = type(sys)
    for name in package.__all__:  # type: ignore[attr-defined]
        getattr(package, name)  # some are imported when they are used
    public = {n for n, v in vars(package).items() if not n.startswith("_") and not isinstance(v, modules)}
    listed = [n for n in package.__all__ if not isinstance(getattr(package, n), modules)]  # type: ignore[attr-defined]
    assert sorted(listed) == sorted(public - {"TYPE_CHECKING"})


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
    assert imports("import interop", "torch")  # the check can see it


def test_ops_alone_do_not_load_jax_extend() -> None:
    assert not imports("import jaxclamp", "jax.extend")
    assert imports("import jaxclamp\njaxclamp.min_norm", "jax.extend")
    with pytest.raises(AttributeError, match="module 'jaxclamp' has no attribute 'clampp'"):
        jaxclamp.clampp  # type: ignore[attr-defined]  # noqa: B018


def test_interop_does_not_load_dynamo() -> None:
    """It takes a second, and only torch.compile needs it."""
    assert not imports("import interop", "torch._dynamo")
    assert imports("import interop, torch\ninterop.relu(torch.ones(2, device='meta'))", "torch._dynamo")


def test_both_packages_are_typed() -> None:
    assert importlib.resources.files("jaxclamp").joinpath("py.typed").is_file()
    assert importlib.resources.files("interop").joinpath("py.typed").is_file()
    assert importlib.metadata.version("jaxclamp")


def test_readme_code_prints_what_it_says() -> None:
    blocks = re.findall(r"```(\w*)\n(.*?)```", README.read_text(), flags=re.DOTALL)
    code = [text for language, text in blocks if language == "python"]
    shown = "".join(text for language, text in blocks if language == "")
    printed = io.StringIO()
    namespace: dict[str, object] = {}
    with contextlib.redirect_stdout(printed):
        for block in code:
            exec(block, namespace)
    assert len(code) >= 3
    assert printed.getvalue() == shown


def test_generated_tables_are_fresh() -> None:
    spec = importlib.util.spec_from_file_location("generate", README.parent / "docs" / "generate.py")
    assert spec is not None
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)  # type: ignore[union-attr]
    for file, text in generate.pages().items():
        assert "| `clamp` |" in text
        assert file.read_text("utf-8") == text, "run `make tables`"
