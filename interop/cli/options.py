"""The options and arguments that several commands have."""

import contextlib
import difflib
import importlib
import importlib.util
import operator
import os
import pkgutil
import sys
import traceback
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import click

from interop.cli.names import DTYPES, OPS
from interop.cli.packages import require


def hint(name: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, known)
    return f" Did you mean {' or '.join(map(repr, near))}?" if near else ""


class OpName(click.Choice[str]):
    def __init__(self) -> None:
        super().__init__(sorted(OPS))

    def get_invalid_choice_message(self, value: Any, ctx: click.Context | None) -> str:
        return super().get_invalid_choice_message(value, ctx) + hint(str(value), OPS)


OUTPUT = click.Path(dir_okay=False, writable=True, path_type=Path)

ONLY_OPS = click.option("--op", "ops", multiple=True, type=OpName(), metavar="OP", help="Only this op; repeatable.")

ONLY_DTYPES = click.option(
    "--dtype", "dtypes", multiple=True, type=click.Choice([*DTYPES, "all"]), help="Only this dtype; repeatable."
)


def in_a_folder(context: click.Context, parameter: click.Parameter, file: Path | None) -> Path | None:
    if file is not None and not file.parent.is_dir():
        raise click.BadParameter(f"the folder {str(file.parent)!r} does not exist.")
    return file


def a_picture(context: click.Context, parameter: click.Parameter, file: Path | None) -> Path | None:
    if file is None:
        return None
    require("matplotlib")
    from matplotlib.backend_bases import FigureCanvasBase

    # Asked for now, as computing what is drawn takes long.
    formats = FigureCanvasBase.get_supported_filetypes()
    if file.suffix[1:] not in formats:
        raise click.BadParameter(
            f"{file.suffix!r} is not a kind of picture; choose one of {', '.join(sorted(formats))}."
        )
    return in_a_folder(context, parameter, file)


FUNCTION = "MODULE:FUNCTION"
"""What a function is called by on the command line; FILE.py:FUNCTION too."""


def function_named(name: str) -> Callable[..., Any]:
    """Import a function by MODULE:FUNCTION or FILE.py:FUNCTION; modules are found from the current folder, too."""
    module, _, function = name.partition(":")
    if not function:
        raise click.BadParameter(f"{name!r} names no function; write {module}:FUNCTION.", param_hint=FUNCTION)
    # For `python -m` it is there, for the script `jaxclamp` the folder of that script is.
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        if module.endswith(".py"):
            resolved = operator.attrgetter(function)(_import_file(Path(module)))
        else:
            resolved = pkgutil.resolve_name(name)
    except (OSError, ValueError, ImportError, AttributeError) as error:
        if any(frame.f_code.co_name == "<module>" for frame, _ in traceback.walk_tb(error.__traceback__)):
            raise  # the module is there, and fails
        raise click.BadParameter(
            f"{name!r} is not found ({error}); give MODULE:FUNCTION, or FILE.py:FUNCTION.", param_hint=FUNCTION
        ) from error
    if not callable(resolved):
        raise click.BadParameter(f"{name!r} is a {type(resolved).__name__}; name a function.", param_hint=FUNCTION)
    return resolved


def _import_file(file: Path) -> ModuleType:
    """Import a file as Python runs it, with its folder on the path, but by its own name, which may be no identifier."""
    spec = importlib.util.spec_from_file_location(file.stem, file.resolve(strict=True))
    assert spec is not None
    assert spec.loader is not None
    sys.path.insert(0, str(file.resolve().parent))
    # Known by its name before it runs: `dataclasses` looks up the module of a class there.
    sys.modules[file.stem] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def arguments_in(files: Iterable[Path]) -> list[Any]:
    """Return the arguments that the files hold, one file after the other."""
    return [argument for file in files for argument in _arguments_in(file)]


def _arguments_in(file: Path) -> Sequence[Any]:
    """Return the arguments that a file holds: each array of an npz file, each of a list in a pt file, else one."""
    import numpy as np

    try:
        match file.suffix:
            case ".safetensors":
                require("safetensors")
                return [importlib.import_module("safetensors.numpy").load_file(file)]
            case ".pt" | ".pth":
                import jax
                import torch

                from interop._bridge.arrays import to_host

                # A list may have numbers and words too, which are passed as they are, and parameters.
                loaded = jax.tree.map(
                    lambda leaf: to_host(leaf.detach()) if isinstance(leaf, torch.Tensor) else leaf,
                    torch.load(file, map_location="cpu", weights_only=True),  # pickles of other things run code
                )
                return loaded if isinstance(loaded, list | tuple) else [loaded]
        if zipfile.is_zipfile(file):
            with np.load(file, allow_pickle=False) as arrays:
                return [arrays[name] for name in arrays.files]
    except Exception as error:  # safetensors has an error of its own
        raise click.BadParameter(f"{str(file)!r}: {error}", param_hint="--inputs") from error
    raise click.BadParameter(
        f"{str(file)!r} is not an npz, pt or safetensors file; write one with numpy.savez.", param_hint="--inputs"
    )


INPUTS = click.option(
    "--inputs",
    "files",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    multiple=True,
    help="A file with arguments, repeatable: the arrays of an npz file, in its order; the tensors of a list that "
    "torch.save wrote; a dict in a pt or safetensors file.",
)


AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON in place of a table.")


@contextlib.contextmanager
def bad_usage(as_json: bool) -> Iterator[None]:
    """Call errors of this package bad usage; others, as those of a function that is called, print their traceback.

    Either way the status is 2, as 1 says what was found. What a function prints is kept apart from JSON. The arguments
    of the command are kept from a script that parses its own, which gets its defaults.
    """
    arguments = sys.argv[1:]
    del sys.argv[1:]
    try:
        with contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext():
            yield
    except click.ClickException:
        raise
    except Exception as error:
        modules = (frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__))
        # Decorators, such as those of `audit`, have frames in contextlib, and in torch's module of that name.
        packages = {name.partition(".")[0] for name in modules if not name.endswith("contextlib")}
        is_of_this_package = packages <= {"interop", "jaxclamp"}
        if is_of_this_package and isinstance(error, TypeError | ValueError | NotImplementedError | ModuleNotFoundError):
            raise click.UsageError(str(error)) from error
        traceback.print_exc()
        sys.exit(2)
    finally:
        sys.argv[1:] = arguments


def chosen_dtypes(dtypes: Sequence[str], default: Sequence[str]) -> Sequence[str]:
    return DTYPES if "all" in dtypes else list(dict.fromkeys(dtypes)) or default
