"""The command that writes the matrix as a page."""

from pathlib import Path

import click

from interop.cli.names import DTYPES
from interop.cli.options import ONLY_DTYPES, ONLY_OPS, OUTPUT, chosen_dtypes, in_a_folder
from interop.cli.packages import require
from interop.cli.rows import rows_of


@click.command()
@ONLY_OPS
@ONLY_DTYPES
@click.option("--output", "file", type=OUTPUT, callback=in_a_folder, required=True, help="The HTML file to write.")
def report(ops: tuple[str, ...], dtypes: tuple[str, ...], file: Path) -> None:
    """Write the matrix and a plot of every op as one page.

    The page needs no network. The whole takes a few minutes.
    """
    require("jinja2", "matplotlib", "rich")
    rows = rows_of(ops, chosen_dtypes(dtypes, default=DTYPES))
    from rich.console import Console
    from rich.progress import track

    from interop.survey.show.report import page, picture
    from jaxclamp import OPS as RECORDS

    # A picture has room for one dtype.
    first = [row for row in rows if row.dtype == rows[0].dtype]
    drawn = list(dict.fromkeys(row.op for row in rows))
    pictures = {
        name: picture(RECORDS[name], [row for row in first if row.op == name])
        for name in track(drawn, "drawing", console=Console(stderr=True), transient=True)
    }
    chosen = " ".join([*(f"--op {op}" for op in ops), *(f"--dtype {dtype}" for dtype in dtypes)])
    file.write_text(page(rows, pictures, chosen), encoding="utf-8")
    click.echo(f"report written to {file}")
