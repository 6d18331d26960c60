"""Random programs with many ties have one gradient in both frameworks, at kinks of their own too.

More than half of the points are on such a kink, where the gradient depends on the direction. The caller names none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import torch

import interop
import jaxclamp
from tests.fuzz.by_differences_torch import spelled
from tests.fuzz.programs import Program, draw_program
from tests.fuzz.steps import Spelling
from tests.support.representatives import parts

POINTS = 4


def of_program(program: Program, spelling: Callable[..., Spelling], as_constant: Callable[[Any], Any]) -> Any:
    """Return the program as a function of its two arrays."""

    def result(x: Any, y: Any) -> Any:
        for _ in range(program.repeats):
            x = program.step(spelling, x, y, as_constant)
        return (as_constant(program.weights) * x).sum()

    return result


@parts(range(80), 2, quick=1)
def test_a_program_has_one_gradient_in_both_frameworks(seeds: range) -> None:
    for seed in seeds:
        program, _ = draw_program(seed)
        points = [x[:POINTS] for x in program.points]
        in_jax = of_program(program, lambda _, step: step.in_jax(), lambda constant: constant)
        with jax.enable_x64():
            gradients = jax.jit(jax.vmap(jaxclamp.grad(in_jax, program.active)))(*points)
        in_torch = of_program(
            program, lambda _, step: spelled(step), lambda c: torch.from_numpy(c) if isinstance(c, np.ndarray) else c
        )
        gradient = interop.grad(in_torch, tuple(program.active))
        for row in range(POINTS):
            of_row = gradient(*(torch.from_numpy(x[row].copy()) for x in points))
            for expected, got in zip(gradients, of_row, strict=True):
                np.testing.assert_allclose(got, expected[row], rtol=1e-6, atol=1e-6, err_msg=f"{program}")
