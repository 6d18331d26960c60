"""Random compositions of the ops, for `fuzzing`: what they are, how they are drawn, and how they are made smaller.

Numbers are small integers, so that ties are common. Where a value is rounded, and a tie would depend on how, the
composition is not drawn.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

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
    UndecidableError,
    Value,
    constant,
    evaluate,
    inputs_of,
)

DEPTH = 4
"""How many steps are composed at most."""
ROWS = 8
"""At how many points each program is evaluated; one for each device that the tests shard over."""

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
class Step:
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
class Program:
    """A composition, the points at which it is differentiated, and with respect to which of its inputs."""

    seed: int
    dtype: str
    inputs: tuple[Array, ...]
    """In float64, with a first axis for the rows."""
    active: tuple[bool, ...]
    steps: tuple[Step, ...]

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

    def smaller(self) -> Iterator[Program]:
        """Programs with less in them, from the smallest on."""
        for end in range(1, len(self.steps)):
            yield self.without_unused(self.steps[:end])
        if len(self.inputs[0]) > 1:
            for row in range(len(self.inputs[0])):
                yield dataclasses.replace(self, inputs=tuple(points[row : row + 1] for points in self.inputs))
        for number, is_active in enumerate(self.active):
            if is_active and sum(self.active) > 1:
                yield dataclasses.replace(self, active=tuple(a and n != number for n, a in enumerate(self.active)))

    def without_unused(self, steps: Sequence[Step]) -> Program:
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


def draw(seed: int, target: str) -> Program:
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
        self.steps: list[Step] = []

    def program(self) -> Program:
        length = self.random.randint(3, 6)
        while len(self.steps) < length or self.depths[-1] < 2 or not self.rows[0][-1].active:
            if len(self.steps) > 8:
                self._begin()
            step = self._step()
            if step is None:
                continue
            depth = 1 + max(self.depths[number] for number in step.refs())
            if depth > DEPTH:
                continue
            try:
                found = [step.evaluated(known, self.dtype) for known in self.rows]
            except UndecidableError:
                continue
            for known, value in zip(self.rows, found, strict=True):
                known.append(value)
            self.steps.append(step)
            self.depths.append(depth)
        return Program(self.seed, self.dtype, self.inputs, self.active, ()).without_unused(self.steps)

    def _array(self, shape: Shape, is_special: bool = False) -> Array:
        numbers = [*_GRID, *_SPECIAL] if is_special else [*_GRID]
        return np.reshape(self.random.choices(numbers, k=math.prod(shape)), shape)

    def _step(self) -> Step | None:
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

    def _selection(self, x: Ref, shape: Shape) -> Step | None:
        op = self.random.choice([*FOLDS])
        if op in ("relu", "relu6"):
            return Step(op, (x,))
        if op == "hardtanh":
            return Step(op, (x, *sorted(self.random.choices(_GRID, k=2))))
        if op != "clamp":
            return Step(op, (x, self._other(x)))
        bounds = [None if self.random.random() < 0.15 else self._other(x) for _ in range(2)]
        shapes = [self._shape(bound) for bound in bounds if bound is not None]
        return Step(op, (x, *bounds)) if shapes and _broadcast(shape, *shapes) is not None else None

    def _kinked(self, x: Ref, shape: Shape) -> Step | None:
        op, is_number = self.random.choice([*KINKED]), self.random.random() < 0.7
        numbers = {
            "leaky_relu": (0.25, -0.5, 0.0, 1.0, 2.0),
            "elu": (1.0, 2.0, 0.5, -1.0, 0.0),
            "celu": (1.0, 2.0, 0.5),
            **dict.fromkeys(("softshrink", "hardshrink"), (0.0, 0.5, 1.0, 2.0)),
        }
        if op == "threshold":
            values = self._fitting(shape, shape[1:], ())
            return Step(op, (x, self.random.choice(_GRID), self.random.choice(_GRID if is_number else values)))
        if op == "prelu":
            weights = [self._array(s) for s in ((), (1,), shape[1:2])] + self._fitting((), shape[1:2])
            return Step(op, (x, self.random.choice(weights))) if len(shape) > 1 else None
        if op not in numbers:
            return Step(op, (x,))
        parameter = self.random.choice(numbers[op])
        if is_number or op in ("celu", "hardshrink"):
            return Step(op, (x, parameter))
        other = self._broadcasting(x)
        is_negative = any((known[other.number].value < 0).any() for known in self.rows)
        return None if op == "softshrink" and is_negative else Step(op, (x, other))

    def _reduction(self, x: Ref, shape: Shape) -> Step | None:
        if not shape:
            return None
        op, ndim = self.random.choice([*REDUCTIONS]), len(shape)
        static: dict[str, Any] = {"axis": self.random.randrange(-ndim, ndim)}
        if self.random.random() < 0.5:
            static["keepdims"] = self.random.random() < 0.7
        if op not in ("amax", "amin"):
            return Step(op, (x,), static)
        if self.random.random() < 0.4:
            static["axis"] = self.random.choice((None, tuple(range(ndim)), (-1,)))
        if self.target == "torch" or self.random.random() < 0.7:
            return Step(op, (x,), static)
        if self.random.random() < 0.5:
            static["where"] = self._array(shape[-1:]) > 0
        return Step(op, (x, self.random.choice([self.random.choice(_GRID), *self._fitting(())])), static)

    def _pool(self, x: Ref, shape: Shape) -> Step | None:
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
        return Step(op, (x,), static)

    def _smooth(self, x: Ref, shape: Shape) -> Step | None:
        return Step(self.random.choice([*SMOOTH]), (x, self._other(x)))

    def _moved(self, x: Ref, shape: Shape) -> Step | None:
        op = self.random.choice([*REARRANGED, "stop_gradient"])
        return Step(op, (x,)) if shape else None

    def _scan(self, x: Ref, shape: Shape) -> Step | None:
        if not shape:
            return None
        carry = self.random.choice([self.random.choice(_GRID), *self._fitting(shape[1:], ())])
        return Step("scan", (carry, x), {"op": self.random.choice(("maximum", "minimum", "clamp_min", "fmin"))})


def _broadcast(*shapes: Shape) -> Shape | None:
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        return None
