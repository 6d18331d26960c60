"""What `interop.compare_models` says of random small networks: of faithful ports, and of ports with one bug.

``python benchmarks/porting_study.py [networks]`` compares a hundred networks of Flax with ports to torch, on five kinds
of inputs, and prints two tables, and on the way all that was not said rightly. It takes half an hour on two cores.
Networks, bugs and inputs follow from their numbers, so that a second run says the same.
"""

from __future__ import annotations

import os
import platform
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path

import jax
import torch
from rich.console import Console
from rich.progress import track

sys.path.append(str(Path(__file__).parent.parent))
from jaxclamp._shared.tables import markdown_table
from tests.compare.random_networks import BUGS, INPUTS, Outcome, outcome

NETWORKS = 100
PROCESSES = 2
HEADINGS = (
    "inputs",
    "faithful",
    "agree",
    "ties",
    "near ties",
    "false alarms",
    "bugs that show",
    "found",
    "place named",
)


def outcomes(seed: int) -> list[Outcome]:
    """Compare one network with its ports, faithful and with its bug, on all inputs; JAX compiles it once."""
    return [outcome(seed, inputs, is_faithful=faithful) for inputs in INPUTS for faithful in (True, False)]


def prepare(cache: str) -> None:
    """Let processes share compilations: these are most of the work, and nearly all are the same ones."""
    torch.set_num_threads(1)
    jax.config.update("jax_compilation_cache_dir", cache)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def is_right(one: Outcome) -> bool:
    return one.is_right_place or (not one.shows and one.finding in ("agrees", "ties", "near ties"))


def row(name: str, outcomes: Sequence[Outcome]) -> tuple[str, ...]:
    faithful = [one for one in outcomes if one.bug is None]
    shown = [one for one in outcomes if one.shows]
    said = [sum(one.finding == finding for one in faithful) for finding in ("agrees", "ties", "near ties")]
    counts = (len(faithful), *said, len(faithful) - sum(said), len(shown))
    places = sum(one.is_right_place for one in shown), sum(one.is_found for one in shown)
    return name, *map(str, counts), share(places[1], len(shown)), share(places[0], places[1])


def share(part: int, whole: int) -> str:
    return f"{part} ({part / whole:.1%})" if whole else "0"


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else NETWORKS
    console = Console(stderr=True)
    done: list[Outcome] = []
    with (
        tempfile.TemporaryDirectory() as cache,
        ProcessPoolExecutor(PROCESSES, get_context("spawn"), prepare, (cache,)) as pool,
    ):
        for of_network in track(pool.map(outcomes, range(count)), "networks", count, console=console):
            done += of_network
            for one in of_network:
                if not is_right(one):
                    console.print(str(one), markup=False)
    versions = ", ".join(f"{name} {version(name)}" for name in ("jax", "flax", "torch"))
    print(f"{count} networks, {versions}, Python {platform.python_version()}, {os.cpu_count()} cores\n")
    by_inputs = [row(kind, [one for one in done if one.inputs == kind]) for kind in INPUTS]
    print(markdown_table(HEADINGS, [*by_inputs, row("all", done)]))
    print()
    of_kind = {kind: [one for one in done if one.bug and one.bug.kind == kind] for kind in BUGS}
    rows = [(kind, str(len(ones)), *row("", ones)[-3:]) for kind, ones in of_kind.items()]
    print(markdown_table(("bug", "comparisons", *HEADINGS[-3:]), rows))


if __name__ == "__main__":
    main()
