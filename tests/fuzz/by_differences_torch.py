"""How torch runs programs of steps, which `by_differences` compares with differences of their values."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import torch

import interop
from tests.fuzz.by_differences import Answer, Target, failures
from tests.fuzz.programs import Program, Step, draw_program
from tests.fuzz.steps import Spelling
from tests.fuzz.steps_torch import SPELLINGS, written


@dataclass(frozen=True)
class TorchForm:
    """How a program is run and differentiated in torch."""

    mode: str
    has_aux: bool
    batch: str

    def __str__(self) -> str:
        return f"{self.mode}{' with an auxiliary result' * self.has_aux}, {self.batch}"


MODES = ("grad", "directional_derivative", "along")
BATCHES = ("vmap", "loop", "sum")


def spelled(step: Step) -> Spelling:
    return step.spelled(SPELLINGS[step.kind])


def drawn_in_torch(program: Program) -> TorchForm:
    choices = random.Random(f"form in torch {program.seed}")
    mode, batch = choices.choice(MODES), choices.choice(BATCHES)
    spellings = [spelled(step) for step in program.steps]
    if mode == "along" or written in spellings:  # one set of parameters; torch's vmap refuses x[mask] = 0
        batch = choices.choice(("loop", "sum"))
    return TorchForm(mode, mode == "grad" and choices.random() < 0.3, batch)


class Module(torch.nn.Module):
    """A program as a module, the parameters of which are what is differentiated."""

    def __init__(self, function: Callable[..., Any], active: Sequence[int], points: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self.function = function
        self.points = [torch.nn.Parameter(x) if n in active else x for n, x in enumerate(points)]
        self.moving = torch.nn.ParameterList(self.points[n] for n in active)

    def forward(self) -> torch.Tensor:
        return self.function(*self.points)  # type: ignore[no-any-return]


def in_torch(program: Program, form: TorchForm) -> Callable[..., Answer]:
    """From the points and the directions to the answer."""

    def constant(value: Any) -> Any:
        return torch.from_numpy(value) if isinstance(value, np.ndarray) else value

    def steps(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        for _ in range(program.repeats):
            x = program.step(lambda _, step: spelled(step), x, y, constant)
        return x

    def result(x: torch.Tensor, y: torch.Tensor) -> Any:
        outcome = steps(x, y)
        total = (constant(program.weights) * outcome).sum()
        return (total, outcome) if form.has_aux else total

    def derived(x: torch.Tensor, y: torch.Tensor, *directions: torch.Tensor) -> Answer:
        own = result(x, y)
        active = [directions[n] for n in program.active]
        match form.mode:
            case "directional_derivative":
                value, derivative = interop.directional_derivative(result, (x, y), directions)
                return own, value, derivative
            case "along":
                module = Module(result, program.active, (x, y))
                with interop.along(module, direction=active):
                    value = module()
                    value.backward()
                return own, value.detach(), tuple(parameter.grad for parameter in module.moving)
        gradients = interop.grad(result, program.active, form.has_aux, direction=tuple(active))(x, y)
        gradients, aux = gradients if form.has_aux else (gradients, None)
        return own, (own[0], aux) if form.has_aux else own, gradients

    match form.batch:
        case "vmap":
            return torch.func.vmap(derived)  # type: ignore[no-any-return]
        case "loop":
            return lambda *rows: jax.tree.map(
                lambda *leaves: torch.stack(leaves), *(derived(*row) for row in zip(*rows, strict=True))
            )
    return derived


def answers_of_torch(seeds: Sequence[int]) -> list[Answer]:
    programs = [draw_program(seed)[0] for seed in seeds]
    return [
        in_torch(program, drawn_in_torch(program))(*map(torch.from_numpy, (*program.points, *program.directions)))
        for program in programs
    ]


TARGET = Target(answers_of_torch, drawn_in_torch)


def failures_of(seeds: range) -> list[str]:
    return failures(seeds, TARGET)
