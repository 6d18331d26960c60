"""The command that draws an op."""

from pathlib import Path

import click

from interop.cli.options import OUTPUT, OpName, a_picture
from interop.cli.packages import require
from interop.cli.rows import compile_quickly, rows_of


@click.command()
@click.argument("op", metavar="OP", type=OpName())
@click.option("--output", "file", type=OUTPUT, callback=a_picture, help="The picture to write, by default OP.png.")
def plot(op: str, file: Path | None) -> None:
    """Draw an op, its slopes, and its gradients at ties, in float32."""
    require("matplotlib", "rich")
    compile_quickly()
    from interop.survey.show.plot import COLOURS, figure
    from jaxclamp import OPS as RECORDS

    file = file or Path(f"{op}.png")
    rows = rows_of([op], ["float32"], list(COLOURS))
    figure(RECORDS[op], rows).savefig(file, dpi=150)
    click.echo(f"plot written to {file}")
