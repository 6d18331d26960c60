"""Computes the rows of the matrix for the commands that show it, with a progress bar meanwhile."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import click

from interop.cli.names import FRAMEWORKS
from interop.cli.packages import require

if TYPE_CHECKING:
    from rich.console import RenderableType

    from interop.survey.matrix import Row


def installed(context: click.Context, parameter: click.Parameter, names: tuple[str, ...]) -> tuple[str, ...]:
    if not names:
        return names
    require("scipy")
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


def _first(row: Row) -> str:
    from interop.survey.show.render import AGREES, DISAGREES, at
    from interop.survey.versions import rounded

    answers = {answer.framework: AGREES if answer.agrees else DISAGREES for answer in row.answers}
    return f"the first: {row.op}({at(row)}), by definition {rounded(row.definition)}, " + ", ".join(
        f"{name} {mark}" for name, mark in answers.items()
    )


def rows_of(
    ops: Sequence[str],
    dtypes: Sequence[str],
    frameworks: Sequence[str] = FRAMEWORKS,
    shown: Callable[[Sequence[Row]], RenderableType] | None = None,
) -> list[Row]:
    """Compute rows of the matrix; on a terminal with a progress bar, below it what is ``shown`` of the rows by then."""
    compile_quickly()
    from rich.console import Console
    from rich.progress import Progress

    from interop.survey import matrix
    from jaxclamp import OPS as RECORDS
    from jaxclamp._shared.tie_cases import cases

    class Display(Progress):
        def get_renderables(self) -> Iterable[RenderableType]:
            yield self.make_tasks_table(self.tasks)
            if shown and rows:
                yield shown(rows)

    # Ops with few cases are done first, so that many are on the screen soon.
    order = list(dict.fromkeys(ops)) or list(RECORDS)
    total = {name: len(list(cases(RECORDS[name]))) for name in order}
    smallest_first = sorted(order, key=total.__getitem__)
    matrix_rows = matrix.matrix([RECORDS[name] for name in smallest_first], dtypes, frameworks)
    rows: list[Row] = []
    console = Console(stderr=True)
    with Display(console=console, transient=True, refresh_per_second=2, disable=not console.is_terminal) as progress:
        for row in progress.track(matrix_rows, len(dtypes) * sum(total.values()), description="asking for gradients"):
            rows.append(row)
            if len(rows) == 1 and not console.is_terminal:  # where no progress bar says that something happens
                click.echo(
                    f"asking for {sum(total.values())} gradients in {', '.join(dtypes)}; {_first(row)}", err=True
                )
    if absent := matrix.absent(frameworks):
        click.echo(f"not installed, so not asked: {', '.join(absent)}", err=True)
    return sorted(rows, key=lambda row: (dtypes.index(row.dtype), order.index(row.op)))
