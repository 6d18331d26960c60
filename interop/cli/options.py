"""The options and arguments that several commands have."""

from __future__ import annotations

import contextlib
import difflib
import importlib
import importlib.metadata
import importlib.util
import itertools
import pkgutil
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
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

    formats = FigureCanvasBase.get_supported_filetypes()
    if file.suffix[1:] not in formats:
        raise click.BadParameter(
            f"{file.suffix!r} is not a kind of picture; choose one of {', '.join(sorted(formats))}."
        )
    return in_a_folder(context, parameter, file)


def a_function(context: click.Context, parameter: click.Parameter, name: str) -> Callable[..., Any]:
    try:
        function = pkgutil.resolve_name(name)
    except (ValueError, ImportError, AttributeError) as error:
        raise click.BadParameter(f"{name!r} is not found ({error}); give MODULE:FUNCTION.") from error
    if not callable(function):
        raise click.BadParameter(f"{name!r} is a {type(function).__name__}; give MODULE:FUNCTION.")
    checked: Callable[..., Any] = function
    return checked


def _arguments(context: click.Context, parameter: click.Parameter, files: tuple[Path, ...]) -> list[Any]:
    return list(itertools.chain.from_iterable(map(_arguments_in, files)))


def _arguments_in(file: Path) -> Iterable[Any]:
    """The arrays of an npz file, each an argument; or one argument, the arrays of a file of safetensors by name."""
    import numpy as np

    try:
        if file.suffix == ".safetensors":
            return [_safetensors().load_file(file)]
        if zipfile.is_zipfile(file):
            with np.load(file, allow_pickle=False) as arrays:
                return [arrays[name] for name in arrays.files]
    except Exception as error:  # safetensors has an error of its own
        raise click.BadParameter(f"{str(file)!r}: {error}") from error
    raise click.BadParameter(f"{str(file)!r} is not an npz file; write one with numpy.savez.")


def _safetensors() -> Any:
    try:
        return importlib.import_module("safetensors.numpy")
    except ModuleNotFoundError as missing:
        raise click.UsageError(
            "a file of safetensors needs safetensors: pip install 'jaxclamp[safetensors]', or in a checkout "
            "'.[safetensors]'"
        ) from missing


INPUTS = click.option(
    "--inputs",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    required=True,
    multiple=True,
    callback=_arguments,
    help="An npz file, whose arrays are positional arguments, in its order; or a file of safetensors, which is one, a "
    "dict. Repeatable.",
)

AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON in place of a table.")


@contextlib.contextmanager
def bad_usage() -> Iterator[None]:
    """Errors of a comparison are bad usage; those of a function that is compared, known by a note, stay its own."""
    try:
        yield
    except (TypeError, ValueError, ModuleNotFoundError) as error:
        if hasattr(error, "__notes__"):
            raise
        raise click.UsageError(str(error)) from error


def chosen_dtypes(dtypes: Sequence[str], default: Sequence[str]) -> Sequence[str]:
    return DTYPES if "all" in dtypes else list(dict.fromkeys(dtypes)) or default
