"""The command that trains one network in four spellings."""

from pathlib import Path

import click

from interop._terminal import console
from interop.cli.options import OUTPUT, a_picture
from interop.cli.packages import require


@click.command()
@click.option("--steps", type=click.IntRange(min=1), default=300, show_default=True)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option("--plot", "file", type=OUTPUT, callback=a_picture, help="Draw the steps.")
def digits(steps: int, seed: int, file: Path | None) -> None:
    """Train one network in four spellings, and compare gradients.

    The data are the digits of scikit-learn. The gradients are compared at every step.
    """
    require("matplotlib", "rich", "sklearn")
    import torch
    from rich.console import Console
    from rich.progress import Progress

    from interop.cli.digits_training import PAIRS, VARIANTS, plot_steps, train
    from jaxclamp._shared.tables import rich_table

    torch.set_num_threads(1)  # the tensors are too small to share
    with Progress(console=Console(stderr=True), transient=True) as progress:
        done = list(progress.track(train(steps, seed), total=steps, description="training"))
    terminal = console()
    differences = rich_table()
    for heading in ("step", *(" against\n".join(pair) for pair in PAIRS), "ties"):
        differences.add_column(heading, justify="right")
    # Some ten steps, and the last.
    shown = sorted({*range(0, steps, max(1, steps // 10)), steps - 1})
    for index in shown:
        figures = (f"{done[index].difference(*pair):.1e}" for pair in PAIRS)
        differences.add_row(str(index), *figures, str(done[index].variants[PAIRS[0][0]].ties))
    largest = (f"{max(step.difference(*pair) for step in done):.1e}" for pair in PAIRS)
    differences.add_row("largest", *largest)
    terminal.print("The largest difference between the gradients of two variants, and the ties of the first:")
    terminal.print(differences)
    headings = ("variant", "first loss", "last loss", "ties per step", "ties in all")
    summary = rich_table(*headings)
    for name in VARIANTS:
        results = [step.variants[name] for step in done]
        ties = sum(result.ties for result in results)
        summary.add_row(name, f"{results[0].loss:.4f}", f"{results[-1].loss:.4f}", f"{ties / steps:.0f}", str(ties))
    terminal.print(f"\nLosses and ties over {steps} step{'s' * (steps > 1)}:")
    terminal.print(summary)
    if file is not None:
        plot_steps(done, file)
        terminal.print(f"plot written to {file}")
