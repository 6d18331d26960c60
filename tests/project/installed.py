"""What an installed wheel has to do where torch is not installed; run with that environment's Python.

Run: python tests/project/installed.py SDIST.tar.gz
"""

import importlib.metadata
import importlib.util
import sys
import tarfile
from pathlib import Path


def check_contents(sdist: Path) -> None:
    """That the wheel has the two typed packages, a command and a fixture, and the sdist what builds and tests it."""
    files = {str(file) for file in importlib.metadata.files("jaxclamp") or ()}
    commands = {file for file in files if file.startswith("../")}
    files -= commands
    assert {Path(file).name for file in commands} == {"jaxclamp"}, commands
    folders = {file.partition("/")[0] for file in files}
    metadata = {folder for folder in folders if folder.endswith(".dist-info")}
    modules = {folder for folder in folders - metadata if not folder.startswith("__pycache__")}
    assert modules == {"jaxclamp", "interop", "pytest_jaxclamp.py"}, folders
    (fixture,) = importlib.metadata.entry_points(group="pytest11", name="jaxclamp")
    assert fixture.value == "pytest_jaxclamp"
    assert {"jaxclamp/py.typed", "interop/py.typed", "jaxclamp/__init__.py"} <= files
    assert {f"{min(metadata)}/licenses/LICENSE"} <= files
    assert {"interop/answers/torch-2.13.0.json", "interop/answers/choices.json"} <= files
    description = importlib.metadata.metadata("jaxclamp").get_payload()
    assert description.startswith("# jaxclamp: ")
    assert "](docs/" not in description
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "LICENSE", "README.md", "Makefile", "constraints.txt"} <= names
    assert "tests/project/installed.py" in names
    assert not [
        name
        for name in names
        if "__pycache__" in name or name.startswith((".venv", "dist/", "docs/_build", "docs/_gallery"))
    ]


def check_ops() -> None:
    """That the ops compute and differentiate, and that torch took no part."""
    import jax
    import jax.numpy as jnp

    import jaxclamp

    for op in jaxclamp.OPS.values():
        x, *rest = max(op.tie_points, key=len)
        x = jnp.asarray(x)

        def total(x: jax.Array, op: jaxclamp.Op = op, rest: list[object] = rest) -> jax.Array:
            result = op.function(x, *rest)
            return (result[0] if isinstance(result, tuple) else result).sum()

        assert jnp.isfinite(jax.jit(jax.grad(total))(x)).all(), op.name
    points = jnp.array([-1.0, 0.0, 3.0, 6.0])
    clamped = jax.vmap(jax.grad(lambda x: jaxclamp.clamp(x, 0.0, 6.0)))(points)
    assert clamped.tolist() == [0.0, 0.0, 1.0, 0.0]
    assert jax.grad(jaxclamp.min_norm(jnp.abs))(0.0) == 0.0
    assert "torch" not in sys.modules


def check_interop() -> None:
    """That it says what it lacks."""
    said = ""
    try:
        import interop  # noqa: F401
    except ModuleNotFoundError as error:
        said = str(error)
    assert "pip install 'jaxclamp[torch]'" in said, said


if __name__ == "__main__":
    assert importlib.util.find_spec("torch") is None, "this test is for an environment without torch"
    check_contents(Path(sys.argv[1]))
    check_ops()
    check_interop()
    print(f"jaxclamp {importlib.metadata.version('jaxclamp')} works without torch")
