"""How torch runs compositions of ops, which `by_definition` compares with the definition of the convention."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import torch
from torch.autograd import forward_ad
from torch.nn import functional

import interop
import jaxclamp
from interop import native
from tests.fuzz import definition
from tests.fuzz.by_definition import (
    IN_BOTH,
    Calls,
    Form,
    Pair,
    arguments_of,
    called,
    differentiated,
    drawn_form,
    failures,
    first_of,
    vmapped,
)
from tests.fuzz.definition import POOLS, Array
from tests.fuzz.programs import Composition, Ref, draw_composition
from tests.fuzz.running import Tree

# What a program calls, in each dialect.


def _pool(pool: Callable[..., torch.Tensor], dims: int) -> Callable[..., torch.Tensor]:
    """Torch's pools want one axis of channels, or two."""

    def pooled(x: torch.Tensor, **windows: Any) -> torch.Tensor:
        result = pool(x.reshape(1, -1, *x.shape[x.dim() - dims :]), **windows)
        return result.reshape(x.shape[: x.dim() - dims] + result.shape[2:])

    return pooled


_ARITHMETIC: Calls = {
    **{
        "add": torch.add,
        "subtract": torch.sub,
        "multiply": torch.mul,
        "transpose": lambda x: x.permute(tuple(range(x.dim() - 1, -1, -1))),
    },
    "flip": lambda x: x.flip(-1),
    "halve": lambda x: x[..., : max(1, x.shape[-1] // 2)],
    "stop_gradient": torch.Tensor.detach,
}


def _of_torch(ops: Calls) -> Calls:
    with_indices = {name: first_of(ops[name]) for name in ("max_with_indices", "min_with_indices")}
    return {**ops, **with_indices, **{name: _pool(ops[name], dims) for name, dims in POOLS.items()}, **_ARITHMETIC}


INTEROP: Calls = _of_torch(interop.TORCH_OPS)
NATIVE: Calls = _of_torch(native.NATIVE)
TORCH_NATIVE: Calls = _of_torch(
    {name: getattr(torch, name, None) or getattr(functional, name, None) for name in jaxclamp.OPS}
    | {"max_with_indices": torch.max, "min_with_indices": torch.Tensor.min}
)
"""Torch's own functions, for `interop.min_norm`."""

DIALECTS: Mapping[str, tuple[Calls, Callable[[], contextlib.AbstractContextManager[Any]]]] = {
    "interop": (INTEROP, contextlib.nullcontext),
    "interop.native": (NATIVE, contextlib.nullcontext),
    "interop.min_norm": (TORCH_NATIVE, interop.min_norm),
    "interop.min_norm of jax": (TORCH_NATIVE, functools.partial(interop.min_norm, backend="jax")),
}


# How a program is run.

_NAMES_OF_TORCH = {"x": "input", "y": "other", "axis": "dim", "keepdims": "keepdim"}
_NAMES_OF_NUMPY = {"y": "x2"}


def run_in_torch(program: Composition, calls: Calls, inputs: Sequence[torch.Tensor]) -> torch.Tensor:
    known, dtype = list(inputs), inputs[0].dtype
    for step in program.steps:
        operands: list[Any] = [known[o.number] if isinstance(o, Ref) else o for o in step.operands]
        operands = [torch.as_tensor(o, dtype=dtype) if isinstance(o, np.ndarray) else o for o in operands]
        beside_tensors = any(isinstance(operand, torch.Tensor) for operand in operands[1:])
        is_of_numbers = step.op in definition.KINKED and step.op != "prelu"  # for torch, not for interop
        of_two = calls is not INTEROP and step.op in ("maximum", "minimum", "fmax", "fmin")
        own = calls
        if (beside_tensors and is_of_numbers) or ("ties" in step.static and calls is TORCH_NATIVE):
            own = INTEROP
        elif beside_tensors or of_two:  # torch takes no numbers there
            operands = [torch.tensor(o, dtype=dtype) if isinstance(o, float) else o for o in operands]
        names = _NAMES_OF_NUMPY if step.op in ("maximum", "amin") else _NAMES_OF_TORCH  # torch knows both
        known.append(called(step, own, operands, names))
    return known[-1]


# How it is transformed.

MODES = (*IN_BOTH, "backward", "backward", "forward_ad")


def drawn_in_torch(program: Composition) -> Form:
    choices = random.Random(f"form torch {program.seed}")
    # aten::hardsigmoid_backward has no forward mode.
    is_flat = program.is_piecewise_linear and all(step.op != "hardsigmoid" for step in program.steps)
    mode = choices.choice([mode for mode in MODES if mode != "hvp" or is_flat])
    how = choices.choice(("loop", "vmap"))
    # At NaN, torch's own amax has another gradient.
    (dialect,) = choices.choices([*DIALECTS], (1, 0, 0, 1) if program.is_special else (1, 6, 6, 1))
    wrapped = ["checkpoint"] if mode == "backward" and choices.random() < 0.4 else []
    how = "loop" if mode in ("backward", "forward_ad") else how
    return drawn_form(choices, program, dialect, mode, wrapped, how)


def backward(function: Callable[..., Any], inputs: Sequence[Any], cotangent: Any, _: Sequence[Any]) -> Tree:
    leaves = [x.detach().requires_grad_() for x in inputs]
    value = function(*leaves)
    return value.detach(), list(torch.autograd.grad(value, leaves, cotangent, materialize_grads=True))


def forward(function: Callable[..., Any], inputs: Sequence[Any], _: Any, tangents: Sequence[Any]) -> Tree:
    with forward_ad.dual_level():
        value = function(*map(forward_ad.make_dual, inputs, tangents))
        unpacked = forward_ad.unpack_dual(value)
        return unpacked.primal, unpacked.tangent


def in_torch(program: Composition, form: Form) -> Callable[..., Tree]:
    """The function of the arguments that answers for all rows, or in a loop for two."""
    calls, mode = DIALECTS[form.dialect]

    def inside(*inputs: torch.Tensor) -> torch.Tensor:
        with mode():
            return run_in_torch(program, calls, inputs)

    def whole(*inputs: torch.Tensor) -> torch.Tensor:
        if "checkpoint" in form.wrapped:
            return torch.utils.checkpoint.checkpoint(inside, *inputs, use_reentrant=False)
        return inside(*inputs)

    def batch(function: Callable[..., Any]) -> Callable[..., Any]:
        if form.batched == "vmap":
            return vmapped(torch.func.vmap, torch.movedim, form, function)

        def loop(*arguments: torch.Tensor) -> Tree:
            rows = [function(*(x[row] for x in arguments)) for row in range(min(2, len(arguments[0])))]
            return jax.tree.map(lambda *leaves: torch.stack(leaves), *rows)

        return loop

    return differentiated(torch.func, {"backward": backward, "forward_ad": forward}, program, form, whole, batch)


# What programs answer.


def _tensors(program: Composition, arrays: Iterable[Array]) -> list[torch.Tensor]:
    return [torch.tensor(a, dtype=getattr(torch, program.dtype)) for a in arrays]


def answers_of_torch(pairs: Sequence[Pair]) -> list[Tree]:
    """In float64, since NumPy has no bfloat16."""
    answers = [in_torch(program, form)(*_tensors(program, arguments_of(program))) for program, form in pairs]
    return jax.tree.map(torch.Tensor.double, answers)  # type: ignore[no-any-return]


def answers_of_compiled_torch(pairs: Sequence[Pair]) -> list[Tree]:
    """Values and gradients of one graph of all programs, run for two rows; in float64 again."""
    torch._dynamo.reset()

    def together(arguments: list[list[torch.Tensor]]) -> list[torch.Tensor]:
        results = []
        for (program, form), inputs in zip(pairs, arguments, strict=True):
            calls, mode = DIALECTS[form.dialect]
            with mode():
                results.append(run_in_torch(program, calls, inputs))
        return results

    graph = torch.compile(together, fullgraph=True, backend="aot_eager")
    found: list[list[Tree]] = []
    for row in range(min(2, len(pairs[0][0].inputs[0]))):
        arguments = [_tensors(program, (points[row] for points in program.inputs)) for program, _ in pairs]
        leaves = [
            [x.requires_grad_() for x, active in zip(inputs, program.active, strict=True) if active]
            for (program, _), inputs in zip(pairs, arguments, strict=True)
        ]
        cotangents = [
            torch.tensor(p.directions("result")[0][row], dtype=x[0].dtype)
            for (p, _), x in zip(pairs, arguments, strict=True)
        ]
        values = graph(arguments)
        together_with = [*itertools.chain(*leaves)]
        gradients = iter(torch.autograd.grad(values, together_with, cotangents, materialize_grads=True))
        found.append([(v.detach(), [next(gradients) for _ in xs]) for v, xs in zip(values, leaves, strict=True)])
    return [jax.tree.map(lambda *leaves: torch.stack(leaves).double(), *rows) for rows in zip(*found, strict=True)]


# What is drawn.


def of_torch(seeds: Iterable[int]) -> list[Pair]:
    programs = [draw_composition(seed, "torch") for seed in seeds]
    return [(program, drawn_in_torch(program)) for program in programs]


def compiled_of_torch(seeds: Iterable[int]) -> list[Pair]:
    plain: Any = {"mode": "backward", "wrapped": (), "batched": "loop", "is_batched_first": False}
    return [(program, dataclasses.replace(form, **plain)) for program, form in of_torch(seeds)]


def failures_of(seeds: range) -> list[str]:
    """Of the compositions of so many seeds: most op by op, and a few as one compiled graph."""
    return [
        *failures(of_torch(seeds[:24]), answers_of_torch),
        *(failures(compiled_of_torch(seeds[24:]), answers_of_compiled_torch) if seeds[24:] else []),
    ]
