"""Computes the rows of the matrix for the commands that show it, with a progress bar meanwhile."""

from __future__ import annotations

import importlib.metadata
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from interop.cli.names import FRAMEWORKS

if TYPE_CHECKING:
    from interop.survey.matrix import Row


def installed(context: click.Context, parameter: click.Parameter, names: tuple[str, ...]) -> tuple[str, ...]:
    if not names:
        return names
    compile_quickly()  # before JAX is imported, as whatever knows the frameworks does
    from interop.survey.matrix import absent

    for name, reason in absent(names).items():
        raise click.BadParameter(f"{name} cannot be asked ({reason}).")
    return names


def compile_quickly() -> None:
    """Let JAX compile with few optimizations: programs for the matrix run once, and compiling is most of the work.

    XLA rewrites them as ever; what is left out is how LLVM improves their machine code. All rows in float32 take 31
    seconds of one core so, and 47 without.
    """
    if "jax" not in sys.modules:  # which reads this when it is imported
        os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
        # Only there has XLA this flag, and it ends a process for one that it does not know.
        if importlib.metadata.version("jaxlib").startswith("0.10."):
            os.environ["XLA_FLAGS"] = f"--xla_cpu_use_fusion_emitters=false {os.environ.get('XLA_FLAGS', '')}"


def rows_of(ops: Sequence[str], dtypes: Sequence[str], frameworks: Sequence[str] = FRAMEWORKS) -> list[Row]:
    """Compute rows of the matrix; on a terminal with a progress bar."""
    compile_quickly()
    from rich.console import Console
    from rich.progress import track

    from interop.survey import matrix
    from jaxclamp import OPS as RECORDS
    from jaxclamp._shared.tie_cases import cases

    records = [RECORDS[name] for name in dict.fromkeys(ops)] or list(RECORDS.values())
    count = sum(len(list(cases(record))) for record in records)
    console = Console(stderr=True)
    if not console.is_terminal:  # where no progress bar says that something happens
        click.echo(f"asking for {count} gradients in {', '.join(dtypes)}", err=True)
    rows = list(
        track(
            matrix.matrix(records, dtypes, frameworks),
            "asking for gradients",
            len(dtypes) * count,
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
    )
    if absent := matrix.absent(frameworks):
        click.echo(f"not installed, so not asked: {', '.join(absent)}", err=True)
    return rows
