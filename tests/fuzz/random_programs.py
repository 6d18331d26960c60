"""Random programs with many ties under random transformations: derivatives against differences of their own values.

Here are the programs, how JAX runs them, and the comparison. How torch runs them is in `random_programs_torch`.

A program is defined by its values in NumPy. Its gradient along a direction v is judged by that at x + h v, where it is
smooth, and its directional derivative by (f(x + h v) - f(x)) / h; no rule for choices is written here.

For the record, with what fails printed: python -m tests.fuzz.random_programs --programs 1000 --target jax
"""

from __future__ import annotations

import argparse
import functools
import itertools
import random
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import numpy as np
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

import jaxclamp
from tests.fuzz.random_steps import KINDS, SHAPE, Array, Spelling, by_argsort, by_clamp

Tree: TypeAlias = Any

PROGRAMS = range(1000)
"""The seeds of the tests."""
DEPTH = 6
"""How many steps follow one another at most."""
ROWS = 8
"""At how many points a program is evaluated, each with its own direction; one for each device of the tests."""


# What a program is.


@dataclass(frozen=True)
class Step:
    """A kind of step, the numbers of the values it takes, its constants, and which of its spellings is used."""

    kind: str
    arrays: tuple[int, ...]
    constants: tuple[Any, ...]
    spelling: int

    def __str__(self) -> str:
        constants = [c.tolist() if isinstance(c, np.ndarray) else c for c in self.constants]
        return f"{self.kind}({', '.join([f'v{n}' for n in self.arrays] + [str(c) for c in constants])})"

    def spelled(self, spellings: Sequence[Spelling]) -> Spelling:
        """The one of these that is used."""
        return spellings[self.spelling % len(spellings)]

    def in_jax(self) -> Spelling:
        return self.spelled(KINDS[self.kind].jax)


@dataclass(frozen=True)
class Program:
    """Steps from v0 and v1, each a 3 x 4 array, to a number; where there are repeats, the outcome is the next v0."""

    seed: int
    steps: tuple[Step, ...]
    repeats: int
    weights: Array
    """Of the elements of the outcome, of which the result is the sum."""
    points: tuple[Array, Array]
    """v0 and v1, with a first axis for the rows."""
    active: tuple[int, ...]
    """Which of them are differentiated."""
    directions: tuple[Array, Array]

    def __str__(self) -> str:
        lines = [f"# seed {self.seed}, differentiated in {self.active}, {self.repeats} times; row 1 of the points:"]
        lines += [f"v{number} = {points[1].tolist()}" for number, points in enumerate(self.points)]
        lines += [f"v{number} = {step}" for number, step in enumerate(self.steps, 2)]
        return "\n".join([*lines, f"weights {self.weights.tolist()}"])

    def step(self, spelled: Callable[..., Any], x: Any, y: Any, constant: Callable[[Any], Any] = lambda c: c) -> Any:
        """All steps once; ``spelled`` says for a step and its number which function it is."""
        known = [x, y]
        for number, step in enumerate(self.steps):
            known.append(spelled(number, step)(*(known[n] for n in step.arrays), *map(constant, step.constants)))
        return known[-1]

    def value(self, x: Array, y: Array) -> Array:
        """The result by definition, for whatever leading axes."""
        for _ in range(self.repeats):
            x = self.step(lambda _, step: KINDS[step.kind].definition, x, y)
        return (self.weights * x).sum((-1, -2))  # type: ignore[no-any-return]


class UndecidedError(Exception):
    """The differences do not tell the derivative: a kink is too near, or values are too large."""


_NEAR = 2.0**-15  # how far away, along the direction, the differences are taken
_RADIUS = 2.0**-27  # of the differences there
TOLERANCE = 1e-4
"""Relative to the largest of the numbers compared and the value. Rounding is far below that; gradients of pieces
differ by far more, since weights and constants are integers."""


@dataclass(frozen=True)
class Expected:
    """What differences of values say, for each row."""

    value: Array
    derivative: Array
    gradients: tuple[Array, ...]
    """With respect to each of the active arrays."""


def expected(program: Program) -> Expected:
    """Raises UndecidedError."""
    value = program.value(*program.points)

    def moved(distance: float) -> tuple[Array, Array]:
        x, y = (p + distance * d for p, d in zip(program.points, program.directions, strict=True))
        return x, y

    def slope(distance: float) -> Array:
        return (program.value(*moved(distance)) - value) / distance

    def gradient(distance: float, active: int) -> Array:
        there = moved(distance)
        steps = _RADIUS * np.eye(12).reshape(12, 1, *SHAPE)
        both = [program.value(*(p + sign * steps * (n == active) for n, p in enumerate(there))) for sign in (1, -1)]
        return np.moveaxis((both[0] - both[1]) / (2 * _RADIUS), 0, -1).reshape(-1, *SHAPE)

    def extrapolated(function: Callable[..., Array], *args: Any) -> Array:
        """Without what is linear in the distance, the curvature of a piece."""
        near, far = function(_NEAR, *args), function(2 * _NEAR, *args)
        # Where the two lie in different pieces, they differ by more than by the curvature.
        if (np.abs(near - far) > 1e-2 * (1 + np.abs(value).max() / 100)).any():
            raise UndecidedError("a kink is near")
        return 2 * near - far

    if np.abs(value).max() > 1e4:
        raise UndecidedError("large values")
    gradients = tuple(extrapolated(gradient, active) for active in program.active)
    derivative = extrapolated(slope)
    pushed = sum((g * program.directions[n]).sum((-1, -2)) for n, g in zip(program.active, gradients, strict=True))
    if not _agree(pushed, derivative, value):
        raise UndecidedError("the slope along the direction is not that of the gradient")
    return Expected(value, derivative, gradients)


def _agree(found: Array, wanted: Array, value: Array) -> bool:
    size = 1 + np.abs(value).max() + np.abs(wanted).max()
    return found.shape == wanted.shape and bool((np.abs(found - wanted) <= TOLERANCE * size).all())


# How it is drawn.


@functools.cache
def draw(seed: int) -> tuple[Program, Expected]:
    """The program of a seed: the first candidate that the differences decide."""
    for attempt in itertools.count():
        program = _candidate(seed, random.Random(f"program {seed} {attempt}"))
        try:
            return program, expected(program)
        except UndecidedError:
            continue
    raise AssertionError


def _candidate(seed: int, choices: random.Random) -> Program:
    repeats = choices.choice((1, 1, 1, 2, 3))
    steps: list[Step] = []
    for _ in range(choices.randint(1, DEPTH // repeats)):
        steps.append(_step(choices, steps, repeats > 1))
    source = np.random.default_rng(choices.getrandbits(32))
    most = source.integers(0, 4, (ROWS, 1, 1))
    most[0], most[1] = 0, 1  # all is tied, and much
    x, y = (source.integers(-most, most + 1, (ROWS, *SHAPE)).astype(float) for _ in range(2))
    x[-1], y[-1] = source.normal(size=(2, *SHAPE))  # nothing is
    active = choices.choice([numbers for numbers in ((0,), (1,), (0, 1)) if {*numbers} <= _reached(steps)])
    directions = [source.normal(size=(ROWS, *SHAPE)) * (n in active) for n in (0, 1)]
    weights = source.integers(-2, 3, SHAPE).astype(float)
    return Program(seed, tuple(steps), repeats, weights, (x, y), active, (directions[0], directions[1]))


def _reached(steps: Sequence[Step]) -> set[int]:
    """Which inputs the last value depends on."""
    reached = {len(steps) + 1}
    for number in range(len(steps) + 1, 1, -1):
        reached |= {*steps[number - 2].arrays} if number in reached else set()
    return reached & {0, 1}


def _step(choices: random.Random, before: Sequence[Step], repeated: bool) -> Step:
    """It takes the value before it, and for others any."""
    used = [KINDS[step.kind] for step in before]
    allowed = [
        name
        for name, kind in KINDS.items()
        if (kind.is_linear or not any(k.is_rounded for k in used))
        and not (kind.is_product and any(k.is_product for k in used))
        and not (repeated and (kind.is_product or kind.is_rounded))
    ]
    name = choices.choice(allowed)
    kind, count = KINDS[name], len(before) + 2
    arrays = [
        count - 1 if before else choices.randrange(2),
        *(choices.randrange(count) for _ in range(kind.arrays - 1)),
    ]
    choices.shuffle(arrays)
    return Step(name, tuple(arrays), tuple(draw(choices) for draw in kind.constants), choices.randrange(60))


Answer: TypeAlias = tuple[Tree, Tree, Tree]
"""The values of the function by itself, those beside the derivative, and the derivative.

The derivative is a tuple of gradients, or an array, along the direction."""


# How it is transformed in JAX.


def _with_its_own_rule(function: Callable[..., Any]) -> Callable[..., Any]:
    """As a ``custom_jvp`` whose rule is that of JAX, in which ties are comparisons with the largest."""
    wrapped = jax.custom_jvp(function)
    wrapped.defjvp(lambda primals, tangents: jax.jvp(function, primals, tangents))
    return wrapped


WRAPPERS: Mapping[str, Callable[..., Callable[..., Any]]] = {
    "jit": jax.jit,
    "checkpoint": jax.checkpoint,
    "cond": lambda f: lambda *xs: lax.cond(xs[0].ravel()[0] > 0, f, f, *xs),
    "switch": lambda f: lambda *xs: lax.switch((xs[0].ravel()[:2] > 0).sum(), [f, f, f], *xs),
    "scan": lambda f: lambda *xs: lax.scan(lambda _, x: (None, f(*x)), None, [x[None] for x in xs])[1][0],
    "vmap": lambda f: lambda *xs: jax.vmap(f, in_axes=-1, out_axes=-1)(*(x[..., None] for x in xs))[..., 0],
    "custom_jvp": _with_its_own_rule,
}
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
    # With a rule of its own, lax.clamp(x, x, y) has derivative 0 in JAX, and a cond in a vmap none in reverse mode.
    if by_clamp in spellings:
        around = tuple("jit" if name == "custom_jvp" else name for name in around)
        steps = {n: "jit" if name == "custom_jvp" else name for n, name in steps.items()}
    if around == ("custom_jvp", "vmap"):
        steps = {n: "jit" if name in ("cond", "switch") else name for n, name in steps.items()}
    has_aux = mode != "directional_derivative" and choices.random() < 0.3
    return JaxForm(mode, has_aux, choices.choice(loops), steps, around, batch)


def mesh() -> jax.sharding.Mesh:
    return jax.make_mesh((ROWS,), ("rows",), axis_types=(jax.sharding.AxisType.Auto,))


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

    rows = PartitionSpec("rows")
    match form.batch:
        case "vmap":
            return jax.vmap(derived)
        case "map":
            return lambda *arguments: lax.map(lambda row: derived(*row), arguments)
        case "shard_map":
            return jax.shard_map(jax.vmap(derived), mesh=mesh(), in_specs=rows, out_specs=rows)
        case "sharded":
            return lambda *arguments: jax.vmap(derived)(
                *lax.with_sharding_constraint(arguments, NamedSharding(mesh(), rows))
            )
    return derived


def answers_of_jax(seeds: Sequence[int], compiled: bool = True) -> list[Answer]:
    """Of all of them, compiled as one program, which takes less time than one for each."""
    programs = [draw(seed)[0] for seed in seeds]
    functions = [in_jax(program, drawn_in_jax(program)) for program in programs]

    def together(arguments: Any) -> list[Answer]:
        return [function(*given) for function, given in zip(functions, arguments, strict=True)]

    with jax.enable_x64(True):
        run = jax.jit(together) if compiled else together
        return jax.device_get(run([(*program.points, *program.directions) for program in programs]))


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
    program, wanted = draw(seed)
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
    if not _agree(value, by_definition, wanted.value):
        return f"another value than by definition: {value}, {by_definition}"
    pairs = [(derivative, wanted.derivative if per_row else wanted.derivative.sum())]
    if isinstance(derivative, tuple):
        pairs = [*zip(derivative, wanted.gradients, strict=True)]
    for ours, theirs in pairs:
        if not _agree(ours, theirs, wanted.value):
            rows = [row for row in range(ROWS) if ours.ndim and not _agree(ours[row], theirs[row], wanted.value)]
            return f"wrong derivative, in rows {rows}:\n{ours[rows]}\nby differences\n{theirs[rows]}"
    return ""


def failures(seeds: Sequence[int], target: Target) -> list[str]:
    """A description of each program that disagrees or raises."""
    try:
        answers = zip(seeds, target.answers(seeds), strict=True)
        found = [disagreement(seed, answer, target.rounds_alike) for seed, answer in answers]
    except Exception as error:
        if len(seeds) > 1:  # of which one it was, each by itself will tell
            return [text for seed in seeds for text in failures([seed], target)]
        found = [f"raises {type(error).__name__}\n{traceback.format_exc(limit=-3, chain=False)}"]
    programs = [draw(seed)[0] for seed in seeds]
    return [f"{p}\n{target.form(p)}\n{why}\n" for p, why in zip(programs, found, strict=True) if why]


def main(targets: Mapping[str, Target]) -> None:
    """Compare programs, and print those that disagree."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=int, default=1000)
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument("--target", choices=targets, default=next(iter(targets)))
    options = parser.parse_args()
    jax.config.update("jax_num_cpu_devices", ROWS)
    count, begin = 0, time.monotonic()
    seeds = range(options.start, options.start + options.programs)
    for first in range(0, len(seeds), 20):
        group = seeds[first : first + 20]
        for text in failures(group, targets[options.target]):
            count += 1
            print(text, flush=True)
        jax.clear_caches()
        seconds = time.monotonic() - begin
        print(f"{options.target}, seeds {seeds[0]} to {group[-1]}: {count} failures, {seconds:.0f} s", flush=True)


if __name__ == "__main__":
    main(TARGETS)
