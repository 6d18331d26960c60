"""Random programs with many ties: what they are, how they are drawn, and how they are made smaller.

Two kinds, for two questions that no one kind can answer:

- Is the gradient of each op that of the convention? A `Composition` calls ops of any shape and dtype, at special values
  too. Right is the chain rule over the derivatives of `definition`. At ties it is not the derivative of the whole.
- Is the derivative of a whole program that of its values? A `Program` has steps that are spelled in many ways: by ops,
  by `where`, by masks, by branches. Right is what `differences` of its values say, which needs finite numbers.

Numbers are small integers, so that ties are common. Drawn is only what can be decided: no tie that rounding can make or
undo, no kink too near for differences.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from tests.fuzz import differences
from tests.fuzz.definition import (
    DTYPES,
    FOLDS,
    KINKED,
    POOLS,
    REARRANGED,
    REDUCTIONS,
    SMOOTH,
    Array,
    Shape,
    UndecidedError,
    Value,
    constant,
    evaluate,
    inputs_of,
)
from tests.fuzz.steps import KINDS, SHAPE, Spelling

CALLS = 4
"""How many calls follow one another at most in a composition."""
ROWS = 8
"""At how many points each program is evaluated; one for each device that the tests shard over."""

DEPTH = 6
"""How many steps follow one another at most in a program."""


# Compositions of ops.

PARAMETERS = {
    **dict.fromkeys(("maximum", "minimum", "fmax", "fmin"), ("x", "y")),
    **dict.fromkeys(("amax", "amin"), ("x", "initial")),
    **dict.fromkeys(("elu", "celu"), ("x", "alpha")),
    **dict.fromkeys(("softshrink", "hardshrink"), ("x", "lambd")),
    "clamp": ("x", "min", "max"),
    "clamp_min": ("x", "min"),
    "clamp_max": ("x", "max"),
    "hardtanh": ("x", "min_val", "max_val"),
    "leaky_relu": ("x", "negative_slope"),
    "prelu": ("x", "weight"),
    "threshold": ("x", "threshold", "value"),
}
"""By which names the operands of an op may be passed; jaxclamp's, which torch spells otherwise."""


@dataclass(frozen=True)
class Ref:
    """The value with this number: inputs come first, then the result of each step."""

    number: int

    def __repr__(self) -> str:
        return f"v{self.number}"


Operand: TypeAlias = Ref | float | Array | None
"""An earlier value, a Python number, a constant array, or None for a bound that is absent."""


@dataclass(frozen=True)
class Call:
    """One call: an op, its operands in the order of its parameters, and what else it takes by keyword."""

    op: str
    operands: tuple[Operand, ...]
    static: Mapping[str, Any] = field(default_factory=dict)
    by_keyword: int = 99
    """From which operand on they are passed by keyword."""

    def __str__(self) -> str:
        shown = [o.tolist() if isinstance(o, np.ndarray) else o for o in self.operands]
        given = [f"{PARAMETERS[self.op][i]}={o}" if i >= self.by_keyword else str(o) for i, o in enumerate(shown)]
        return f"{self.op}({', '.join(given + [f'{name}={value}' for name, value in self.static.items()])})"

    def refs(self) -> set[int]:
        return {operand.number for operand in self.operands if isinstance(operand, Ref)}

    def evaluated(self, known: Sequence[Value], dtype: str) -> Value:
        """Its result by definition."""
        operands = [
            known[o.number] if isinstance(o, Ref) else None if o is None else constant(o, known[0])
            for o in self.operands
        ]
        return evaluate(self.op, operands, self.static, dtype)


@dataclass(frozen=True)
class Composition:
    """A composition, the points at which it is differentiated, and with respect to which of its inputs."""

    seed: int
    dtype: str
    inputs: tuple[Array, ...]
    """In float64, with a first axis for the rows."""
    active: tuple[bool, ...]
    steps: tuple[Call, ...]

    def __str__(self) -> str:
        lines = [f"# seed {self.seed}, {self.dtype}"]
        for number, (points, active) in enumerate(zip(self.inputs, self.active, strict=True)):
            lines.append(f"v{number} = {points.tolist()}  # a row each{', differentiated' if active else ''}")
        return "\n".join(lines + [f"v{len(self.inputs) + n} = {step}" for n, step in enumerate(self.steps)])

    @functools.cached_property
    def expected(self) -> list[Value]:
        """The result by definition, a row each, with the ties of all steps."""
        results = []
        for row in range(len(self.inputs[0])):
            known = inputs_of([points[row] for points in self.inputs], self.active)
            for step in self.steps:
                known.append(step.evaluated(known, self.dtype))
            results.append(dataclasses.replace(known[-1], tied=sum(value.tied for value in known)))
        return results

    @property
    def is_special(self) -> bool:
        """Whether there are infinities and NaN."""
        return not all(np.isfinite(points).all() for points in self.inputs)

    @property
    def is_piecewise_linear(self) -> bool:
        """Whether all second derivatives are 0."""
        curved = {"multiply", "elu", "selu", "celu", "hardswish"}
        has_slopes = any(
            step.op in ("leaky_relu", "prelu") and isinstance(step.operands[1], Ref) for step in self.steps
        )
        return not has_slopes and curved.isdisjoint(step.op for step in self.steps)

    def directions(self, like: str) -> list[Array]:
        """A cotangent of the result (``like="result"``) or a tangent of each active input, with a row axis."""
        numbers = random.Random(f"{like} {self.seed}")
        shapes = (
            [(len(self.expected), *self.expected[0].value.shape)]
            if like == "result"
            else [points.shape for points, active in zip(self.inputs, self.active, strict=True) if active]
        )
        return [np.reshape(numbers.choices((-2.0, -1.0, 0.0, 1.0, 2.0, 3.0), k=math.prod(s)), s) for s in shapes]

    def smaller(self) -> Iterator[Composition]:
        """Programs with less in them, from the smallest on."""
        for end in range(1, len(self.steps)):
            yield self.without_unused(self.steps[:end])
        if len(self.inputs[0]) > 1:
            for row in range(len(self.inputs[0])):
                yield dataclasses.replace(self, inputs=tuple(points[row : row + 1] for points in self.inputs))
        for number, is_active in enumerate(self.active):
            if is_active and sum(self.active) > 1:
                yield dataclasses.replace(self, active=tuple(a and n != number for n, a in enumerate(self.active)))

    def without_unused(self, steps: Sequence[Call]) -> Composition:
        """The program of these steps, but for those on which the last does not depend."""
        count = len(self.inputs)
        needed = {count + len(steps) - 1}
        for number in range(count + len(steps) - 1, count - 1, -1):
            if number in needed:
                needed |= steps[number - count].refs()
        kept = sorted(needed)
        new = {old: Ref(n) for n, old in enumerate(kept)}
        return dataclasses.replace(
            self,
            inputs=tuple(self.inputs[n] for n in kept if n < count),
            active=tuple(self.active[n] for n in kept if n < count),
            steps=tuple(
                dataclasses.replace(s, operands=tuple(new[o.number] if isinstance(o, Ref) else o for o in s.operands))
                for s in (steps[n - count] for n in kept if n >= count)
            ),
        )


_GRID = (-3.0, -2.0, -1.0, -1.0, -0.0, 0.0, 0.0, 1.0, 1.0, 2.0, 3.0, 6.0)
_SPECIAL = (math.nan, math.inf, -math.inf)
_SHAPES: tuple[Shape, ...] = ((2, 1), (1, 4), (2, 4), (4,), ())


def draw_composition(seed: int, target: str) -> Composition:
    """The program of this seed, for JAX (``"jax"``) or for torch (``"torch"``), where there are no loops."""
    return _Drawing(seed, target).program()


class _Drawing:
    def __init__(self, seed: int, target: str) -> None:
        self.seed, self.target = seed, target
        self.random = random.Random(f"{target} {seed}")
        self.dtype = self.random.choices([*DTYPES], (8, 2, 1, 1))[0]
        is_special = self.random.random() < 0.1
        # Each op is a program of its own for each dtype and shape in torch: fewer of them take less time to compile.
        others = self.random.choices(_SHAPES[-3:] if target == "torch" else _SHAPES, k=self.random.randrange(3))
        first = self.random.choice(((2, 4), (2, 2, 2)))
        self.inputs = tuple(self._array((ROWS, *shape), is_special) for shape in [first, *others])
        active = [self.random.random() < 0.6 for _ in self.inputs]
        active[self.random.randrange(len(active))] = True
        self.active = tuple(active)
        self._begin()

    def _begin(self) -> None:
        self.rows = [inputs_of([points[row] for points in self.inputs], self.active) for row in range(ROWS)]
        self.depths = [0] * len(self.inputs)
        self.steps: list[Call] = []

    def program(self) -> Composition:
        length = self.random.randint(3, 6)
        while len(self.steps) < length or self.depths[-1] < 2 or not self.rows[0][-1].active:
            if len(self.steps) > 8:
                self._begin()
            step = self._step()
            if step is None:
                continue
            depth = 1 + max(self.depths[number] for number in step.refs())
            if depth > CALLS:
                continue
            try:
                found = [step.evaluated(known, self.dtype) for known in self.rows]
            except UndecidedError:
                continue
            for known, value in zip(self.rows, found, strict=True):
                known.append(value)
            self.steps.append(step)
            self.depths.append(depth)
        return Composition(self.seed, self.dtype, self.inputs, self.active, ()).without_unused(self.steps)

    def _array(self, shape: Shape, is_special: bool = False) -> Array:
        numbers = [*_GRID, *_SPECIAL] if is_special else [*_GRID]
        return np.reshape(self.random.choices(numbers, k=math.prod(shape)), shape)

    def _step(self) -> Call | None:
        """A step that follows, or None if what was drawn does not fit."""
        kinds = {
            self._selection: 9,
            self._kinked: 6,
            self._reduction: 4,
            self._pool: 3,
            self._smooth: 3,
            self._moved: 2,
        }
        if self.target == "jax":
            kinds[self._scan] = 1
        (kind,) = self.random.choices([*kinds], [*kinds.values()])
        x = Ref(max(self.random.randrange(len(self.rows[0])) for _ in range(3)))  # rather a late one
        step = kind(x, self._shape(x))
        if step is not None and step.op in (*FOLDS, *REDUCTIONS, *POOLS) and self.random.random() < 0.2:
            ties = {"ties": self.random.choice(("inclusive", "exclusive", "balanced"))}
            step = dataclasses.replace(step, static=step.static | ties)
        if step is None or step.op not in PARAMETERS or len(step.operands) == 1:
            return step
        from_where = (1,) if step.op in REDUCTIONS else (99, 99, 2, 1, 0)
        return dataclasses.replace(step, by_keyword=self.random.choice(from_where))

    def _shape(self, operand: Operand) -> Shape:
        return self.rows[0][operand.number].value.shape if isinstance(operand, Ref) else np.shape(operand)

    def _fitting(self, *shapes: Shape) -> list[Ref]:
        """The earlier values of one of these shapes."""
        return [ref for ref in map(Ref, range(len(self.rows[0]))) if self._shape(ref) in shapes]

    def _broadcasting(self, x: Ref) -> Ref:
        refs = map(Ref, range(len(self.rows[0])))
        return self.random.choice([ref for ref in refs if _broadcast(self._shape(x), self._shape(ref))])

    def _other(self, x: Ref) -> Operand:
        """What an elementwise op may have beside x."""
        kind = self.random.random()
        if kind < 0.25:
            return self.random.choice(_GRID)
        if kind < 0.35:
            return self._array(self.random.choice(((), self._shape(x)[-1:])))
        return self._broadcasting(x)

    def _selection(self, x: Ref, shape: Shape) -> Call | None:
        op = self.random.choice([*FOLDS])
        if op in ("relu", "relu6"):
            return Call(op, (x,))
        if op == "hardtanh":
            return Call(op, (x, *sorted(self.random.choices(_GRID, k=2))))
        if op != "clamp":
            return Call(op, (x, self._other(x)))
        bounds = [None if self.random.random() < 0.15 else self._other(x) for _ in range(2)]
        shapes = [self._shape(bound) for bound in bounds if bound is not None]
        return Call(op, (x, *bounds)) if shapes and _broadcast(shape, *shapes) is not None else None

    def _kinked(self, x: Ref, shape: Shape) -> Call | None:
        op, is_number = self.random.choice([*KINKED]), self.random.random() < 0.7
        numbers = {
            "leaky_relu": (0.25, -0.5, 0.0, 1.0, 2.0),
            "elu": (1.0, 2.0, 0.5, -1.0, 0.0),
            "celu": (1.0, 2.0, 0.5),
            **dict.fromkeys(("softshrink", "hardshrink"), (0.0, 0.5, 1.0, 2.0)),
        }
        if op == "threshold":
            values = self._fitting(shape, shape[1:], ())
            return Call(op, (x, self.random.choice(_GRID), self.random.choice(_GRID if is_number else values)))
        if op == "prelu":
            weights = [self._array(s) for s in ((), (1,), shape[1:2])] + self._fitting((), shape[1:2])
            return Call(op, (x, self.random.choice(weights))) if len(shape) > 1 else None
        if op not in numbers:
            return Call(op, (x,))
        parameter = self.random.choice(numbers[op])
        if is_number or op in ("celu", "hardshrink"):
            return Call(op, (x, parameter))
        other = self._broadcasting(x)
        is_negative = any((known[other.number].value < 0).any() for known in self.rows)
        return None if op == "softshrink" and is_negative else Call(op, (x, other))

    def _reduction(self, x: Ref, shape: Shape) -> Call | None:
        if not shape:
            return None
        op, ndim = self.random.choice([*REDUCTIONS]), len(shape)
        static: dict[str, Any] = {"axis": self.random.randrange(-ndim, ndim)}
        if self.random.random() < 0.5:
            static["keepdims"] = self.random.random() < 0.7
        if op not in ("amax", "amin"):
            return Call(op, (x,), static)
        if self.random.random() < 0.4:
            static["axis"] = self.random.choice((None, tuple(range(ndim)), (-1,)))
        if self.target == "torch" or self.random.random() < 0.7:
            return Call(op, (x,), static)
        if self.random.random() < 0.5:
            static["where"] = self._array(shape[-1:]) > 0
        return Call(op, (x, self.random.choice([self.random.choice(_GRID), *self._fitting(())])), static)

    def _pool(self, x: Ref, shape: Shape) -> Call | None:
        ops = [op for op, dims in POOLS.items() if dims <= len(shape)]
        if not ops:
            return None
        op = self.random.choice([*ops, *ops[-1:] * 2])
        p, d = self.random.choice((0, 0, 1)), self.random.choice((1, 1, 2))
        fitting = [
            [k for k in (1, 2, 2, 3) if 2 * p <= k and n + 2 * p > d * (k - 1)] for n in shape[len(shape) - POOLS[op] :]
        ]
        if not all(fitting):
            return None
        static: dict[str, Any] = {
            "kernel_size": tuple(map(self.random.choice, fitting)),
            "stride": self.random.choice((None, 1, 2)),
            "padding": p,
            "dilation": d,
            "ceil_mode": self.random.random() < 0.3,
        }
        return Call(op, (x,), static)

    def _smooth(self, x: Ref, shape: Shape) -> Call | None:
        return Call(self.random.choice([*SMOOTH]), (x, self._other(x)))

    def _moved(self, x: Ref, shape: Shape) -> Call | None:
        op = self.random.choice([*REARRANGED, "stop_gradient"])
        return Call(op, (x,)) if shape else None

    def _scan(self, x: Ref, shape: Shape) -> Call | None:
        if not shape:
            return None
        carry = self.random.choice([self.random.choice(_GRID), *self._fitting(shape[1:], ())])
        return Call("scan", (carry, x), {"op": self.random.choice(("maximum", "minimum", "clamp_min", "fmin"))})


def _broadcast(*shapes: Shape) -> Shape | None:
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        return None


# Programs of steps.


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


@functools.cache
def draw_program(seed: int) -> tuple[Program, differences.Expected]:
    """The program of a seed: the first candidate that the differences decide."""
    for attempt in itertools.count():
        program = _candidate(seed, random.Random(f"program {seed} {attempt}"))
        try:
            return program, differences.expected(program)
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
