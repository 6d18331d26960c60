"""Programs of steps under random transformations of JAX: their derivatives against differences of their values.

How torch runs them is in `by_differences_torch`.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import numpy as np
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

import jaxclamp
from tests.fuzz import running
from tests.fuzz.differences import agree
from tests.fuzz.programs import ROWS, Program, Step, draw_program
from tests.fuzz.running import Tree, mesh, over_rows, together
from tests.fuzz.steps import KINDS, Array, Spelling, by_argsort, by_clamp

PROGRAMS = range(1000)
"""The seeds of the tests."""

Answer: TypeAlias = tuple[Tree, Tree, Tree]
"""The values of the function by itself, those beside the derivative, and the derivative.

The derivative is a tuple of gradients, or an array, along the direction."""


# How it is transformed in JAX.


WRAPPERS = {name: running.WRAPPERS[name] for name in running.WRAPPERS if name != "checkpoint of all"}
"""What may be around all steps, or around one."""


def _while_loop(step: Callable[..., Any], x: Any, repeats: int) -> Any:
    return lax.while_loop(lambda state: state[0] < repeats, lambda state: (state[0] + 1, step(state[1])), (0, x))[1]


def _python_loop(step: Callable[..., Any], x: Any, repeats: int) -> Any:
    for _ in range(repeats):
        x = step(x)
    return x


LOOPS: Mapping[str, Callable[..., Any]] = {
    "a Python loop": _python_loop,
    "scan": lambda step, x, repeats: lax.scan(lambda x, _: (step(x), None), x, None, repeats)[0],
    "fori_loop": lambda step, x, repeats: lax.fori_loop(0, repeats, lambda _, x: step(x), x),
    "while_loop": _while_loop,
}
MODES = ("grad", "value_and_grad", "directional_derivative")
BATCHES = ("vmap", "map", "sum", "shard_map", "sharded")


@dataclass(frozen=True)
class JaxForm:
    """How a program is run and differentiated in JAX."""

    mode: str
    has_aux: bool
    loop: str
    around_steps: Mapping[int, str]
    """By the number of the step."""
    around: tuple[str, ...]
    """What is around all of them, from the inside out."""
    batch: str
    """How the rows are brought in."""

    def __str__(self) -> str:
        aux = " with an auxiliary result" * self.has_aux
        inside = "".join(f", step {number + 2} in {name}" for number, name in self.around_steps.items())
        around = "".join(f", in {name}" for name in self.around)
        return f"{self.mode}{aux}, {self.batch}; {self.loop}{inside}{around}"


def drawn_in_jax(program: Program) -> JaxForm:
    choices = random.Random(f"form in jax {program.seed}")
    mode, batch = choices.choice(MODES), choices.choice(BATCHES)
    loops = [name for name in LOOPS if name != "while_loop" or mode == "directional_derivative"]
    # In shard_map, JAX 0.10 takes the indices of argsort for the same on all devices, but not of one in vmap, and so in
    # the derivative of a sort, which the rule of a custom_jvp has. There it cannot differentiate x * constant in a cond
    # either: pvary, it says.
    spellings = [step.in_jax() for step in program.steps]
    if batch == "shard_map" and by_argsort in spellings:
        batch = "sharded"
    wrappers = [name for name in WRAPPERS if batch != "shard_map" or name not in ("cond", "switch", "custom_jvp")]
    around = tuple(choices.choices(wrappers, k=choices.choice((0, 1, 1, 2))))
    steps = {n: choices.choice(wrappers) for n in range(len(program.steps)) if choices.random() < 0.2}
    # With a rule of its own, lax.clamp(x, x, y) has derivative 0 in JAX. In a vmap around such a rule, a cond has none
    # in reverse mode, and that of a cumulative extremum has its axes in another order.
    in_vmap = {step.kind for step in program.steps if "vmap" in around}
    # A rule that differentiates a norm divides by 0 at 0.
    has_length = any(step.kind == "less the length" for step in program.steps)
    if by_clamp in spellings or has_length or in_vmap & {"branch", "cumulative maximum", "cumulative minimum"}:
        around = tuple("jit" if name == "custom_jvp" else name for name in around)
        steps = {n: "jit" if name == "custom_jvp" else name for n, name in steps.items()}
    if around == ("custom_jvp", "vmap"):
        steps = {n: "jit" if name in ("cond", "switch") else name for n, name in steps.items()}
    has_aux = mode != "directional_derivative" and choices.random() < 0.3
    return JaxForm(mode, has_aux, choices.choice(loops), steps, around, batch)


def in_jax(program: Program, form: JaxForm) -> Callable[..., Answer]:
    """From the points and the directions to the answer."""

    def spelled(number: int, step: Step) -> Spelling:
        function, count = step.in_jax(), len(step.arrays)

        def applied(*operands: Any) -> Any:
            return function(*operands, *step.constants)

        wrapped = WRAPPERS[form.around_steps[number]](applied) if number in form.around_steps else applied
        return lambda *operands: wrapped(*operands[:count])

    def steps(x: jax.Array, y: jax.Array) -> jax.Array:
        return LOOPS[form.loop](lambda x: program.step(spelled, x, y), x, program.repeats)  # type: ignore[no-any-return]

    for name in form.around:
        steps = WRAPPERS[name](steps)

    def result(x: jax.Array, y: jax.Array) -> Any:
        """A number; of all rows, the sum."""
        outcome = steps(x, y)
        total = (program.weights * outcome).sum()
        return (total, outcome) if form.has_aux else total

    def derived(x: jax.Array, y: jax.Array, *directions: jax.Array) -> Tree:
        own = result(x, y)
        if form.mode == "directional_derivative":
            value, derivative = jaxclamp.directional_derivative(result, (x, y), directions)
            return own, value, derivative
        argnums = program.active if len(program.active) > 1 else program.active[0]
        direction = tuple(directions[n] for n in program.active) if len(program.active) > 1 else directions[argnums]
        of_result = getattr(jaxclamp, form.mode)(result, argnums, form.has_aux, direction=direction)
        found = of_result(x, y)
        if form.mode == "value_and_grad":
            value, gradient = found
        else:
            gradient, aux = found if form.has_aux else (found, None)
            value = (own[0], aux) if form.has_aux else own
        return own, value, gradient if len(program.active) > 1 else (gradient,)

    if form.batch == "sum":
        return derived
    if form.batch == "sharded":
        sharding = NamedSharding(mesh(), PartitionSpec("rows"))
        return lambda *arguments: jax.vmap(derived)(*lax.with_sharding_constraint(arguments, sharding))
    return over_rows(form.batch, derived)


def answers_of_jax(seeds: Sequence[int], compiled: bool = True) -> list[Answer]:
    programs = [draw_program(seed)[0] for seed in seeds]
    functions = [in_jax(program, drawn_in_jax(program)) for program in programs]

    arguments = [(*program.points, *program.directions) for program in programs]
    with jax.enable_x64(True):
        return jax.device_get(together(functions, arguments, compiled))


# The comparison.


@dataclass(frozen=True)
class Target:
    """A framework: what programs answer in it, together, and in which form each is asked."""

    answers: Callable[[Sequence[int]], list[Answer]]
    form: Callable[[Program], Any]
    rounds_alike: bool = True
    """Whether a function that is evaluated twice gives the same bits. XLA may fuse the two in different ways."""


TARGETS = {
    "jax": Target(answers_of_jax, drawn_in_jax, rounds_alike=False),
    "jax op by op": Target(functools.partial(answers_of_jax, compiled=False), drawn_in_jax),
}


def _same(found: Array, own: Array, exact: int) -> bool:
    """Whether values are the same, to the bit in so many rows, and in the others nearly."""
    if not found.ndim:  # a sum of all rows, which is as exact as they are
        found, own, exact = found[None], own[None], exact // ROWS
    near = np.allclose(found, own, rtol=0, atol=1e-13 * (1 + np.abs(own).max()))
    return near and found[:exact].tobytes() == own[:exact].tobytes()


def disagreement(seed: int, answer: Answer, rounds_alike: bool) -> str:
    """How an answer differs from what is expected; empty if it does not."""
    program, wanted = draw_program(seed)
    own, values, derivative = jax.tree.map(np.asarray, answer)
    exact = ROWS
    if not rounds_alike:  # of integers, in all rows but the last, nothing is rounded but by some steps
        exact = 0 if any(KINDS[step.kind].is_rounded for step in program.steps) else ROWS - 1
    for ours, theirs in zip(jax.tree.leaves(values), jax.tree.leaves(own), strict=True):
        if not _same(ours, theirs, exact):
            return f"wrong value {ours}, by itself {theirs}"
    value, *_ = jax.tree.leaves(own)
    per_row = bool(value.ndim)  # else their sum
    by_definition = wanted.value if per_row else wanted.value.sum()
    if not agree(value, by_definition, wanted.value):
        return f"another value than by definition: {value}, {by_definition}"
    pairs = [(derivative, wanted.derivative if per_row else wanted.derivative.sum())]
    if isinstance(derivative, tuple):
        pairs = [*zip(derivative, wanted.gradients, strict=True)]
    for ours, theirs in pairs:
        if not agree(ours, theirs, wanted.value):
            rows = [row for row in range(ROWS) if ours.ndim and not agree(ours[row], theirs[row], wanted.value)]
            return f"wrong derivative, in rows {rows}:\n{ours[rows]}\nby differences\n{theirs[rows]}"
    return ""


def failures(seeds: Sequence[int], target: Target) -> list[str]:
    """A description of each program that disagrees or raises."""

    def judged(seed: int, answer: Answer) -> str:
        return disagreement(seed, answer, target.rounds_alike)

    def described(seed: int, reason: str) -> str:
        program, _ = draw_program(seed)
        return f"{program}\n{target.form(program)}\n{reason}\n"

    return running.failures(seeds, target.answers, judged, described)


def failures_of(seeds: range) -> list[str]:
    return failures(seeds, TARGETS["jax"])
