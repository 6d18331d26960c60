"""Compares the gradients of torch's functions in two versions, with the calls that torch's own OpInfo makes.

``python benchmarks/versions_of_torch.py record FILE`` computes them with the installed torch, for which the package
expecttest has to be installed too. ``--as-of "torch 2.13"`` does so in a block of `interop.as_of`, and ``--special``
draws infinities and NaN beside small integers. ``compare FILE FILE`` says for each function how many calls differ.
"""

from __future__ import annotations

import argparse
import contextlib
import pickle
import random
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from rich.progress import track
from torch.utils._pytree import tree_leaves, tree_map

import interop

Gradients: TypeAlias = list[np.ndarray[Any, Any] | None]
Call: TypeAlias = tuple[str, ...]
"""The name of a function, and its arguments as text; tensors of floating point numbers by their form alone."""

INTEGERS = torch.arange(-2.0, 3.0)
SPECIAL = torch.cat([INTEGERS, torch.tensor([0.0, torch.inf, -torch.inf, torch.nan])])

RANDOM = (
    *("empty", "rand", "dropout", "normal", "bernoulli", "multinomial", "rrelu", "cauchy", "exponential", "geometric"),
    *("uniform", "fractional"),
)
"""Parts of the names of functions that draw random numbers, or return memory as it is."""
UNSTABLE = ("svd", "eig", "lu", "cholesky", "ormqr", "geqrf", "lowrank", "stft", "fft", "jiterator", "sparse", "signal")
"""Those whose results have a sign or an order of their own, or that take long."""
READ_AS_POSITIONS = (
    *("grid_sample", "hist", "upsample", "interpolate", "embedding", "index_", "scatter", "gather", "take", "segment"),
    *("ctc", "quantile"),
)
"""Those that read numbers as positions: torch ends the process at a NaN."""


def functions(excluded: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    from torch.testing._internal.common_methods_invocations import op_db  # it takes seconds, and expecttest

    for op in track(op_db, "calls", transient=True):
        name = f"{op.name} {op.variant_test_name}".strip()
        if op.supports_autograd and not any(part in name for part in excluded):
            yield name, op


def calls(op: Any) -> list[Any]:
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    try:
        return list(op.sample_inputs("cpu", torch.float32, requires_grad=True))
    except Exception:  # some have no samples here: they need a GPU, or SciPy
        return []


def described(leaf: Any) -> str:
    if not isinstance(leaf, torch.Tensor):
        return repr(leaf)
    form = f"{leaf.dtype} {tuple(leaf.shape)} {leaf.stride()} {leaf.requires_grad}"
    return form if leaf.is_floating_point() else f"{form} {leaf.tolist()}"


def redrawn(leaf: Any, numbers: torch.Tensor) -> Any:
    """Draw a tensor of that form, the same in each version of torch; all else stays as it is."""
    if not isinstance(leaf, torch.Tensor) or not leaf.is_floating_point():
        return leaf
    drawn = np.random.default_rng(leaf.numel()).integers(len(numbers), size=tuple(leaf.shape))
    return numbers[torch.from_numpy(drawn)].to(leaf.dtype).requires_grad_(leaf.requires_grad)


def gradients(op: Any, arguments: Any, version: str | None) -> Gradients | str:
    """Differentiate by each tensor that requires it, with another cotangent for each element of the results."""
    x, args, kwargs = arguments
    active = [leaf for leaf in tree_leaves(arguments) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    try:
        with interop.as_of(version) if version else contextlib.nullcontext():
            results = tree_leaves(op.op(x, *args, **kwargs))
        results = [leaf for leaf in results if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
        cotangents = [torch.arange(1, y.numel() + 1).reshape(y.shape).to(y.dtype) for y in results]
        parts = torch.autograd.grad(results, active, cotangents, allow_unused=True)
    except Exception as error:
        return type(error).__name__
    return [None if part is None else part.numpy(force=True) for part in parts]


def record(file: Path, version: str | None, special: bool) -> None:
    numbers = SPECIAL if special else INTEGERS
    recorded: dict[Call, Gradients | str] = {}
    for name, op in functions(RANDOM + UNSTABLE + (READ_AS_POSITIONS if special else ())):
        for sample in calls(op):
            arguments = sample.input, sample.args, sample.kwargs
            call = (name, *map(described, tree_leaves(arguments)))
            recorded[call] = gradients(op, tree_map(lambda leaf: redrawn(leaf, numbers), arguments), version)
    file.write_bytes(pickle.dumps((torch.__version__, recorded)))


def differ(first: Gradients | str, second: Gradients | str) -> bool:
    if isinstance(first, str) or isinstance(second, str):
        return isinstance(first, str) != isinstance(second, str)
    return any(
        (a is None) != (b is None) or (a is not None and not np.allclose(a, b, 1e-4, 1e-5, equal_nan=True))
        for a, b in zip(first, second, strict=True)
    )


def compare(files: list[Path]) -> None:
    (first, in_first), (second, in_second) = (pickle.loads(file.read_bytes()) for file in files)
    common = in_first.keys() & in_second.keys()
    print(f"torch {first} and {second}: {len(common):,} calls")
    for name, count in sorted(Counter(call[0] for call in common if differ(in_first[call], in_second[call])).items()):
        print(f"{name:60} {count:4}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record")
    recording.add_argument("file", type=Path)
    recording.add_argument("--as-of", metavar="VERSION")
    recording.add_argument("--special", action="store_true")
    commands.add_parser("compare").add_argument("files", type=Path, nargs=2)
    arguments = parser.parse_args()
    if arguments.command == "compare":
        compare(arguments.files)
        return
    warnings.simplefilter("ignore")  # of torch's samples
    record(arguments.file, arguments.as_of, arguments.special)


if __name__ == "__main__":
    main()
