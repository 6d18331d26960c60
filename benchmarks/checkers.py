"""How often `jaxclamp.check_grads` and `interop.gradcheck` are wrong, on random functions in bad scales.

``python benchmarks/checkers.py [jax] [torch] [--functions 5000] [--seed 0]`` prints a table for each framework. A
function is a random composition of smooth and kinked pieces, at ties and away from them. Its inputs are of 1e-6 to 1e6,
those of one call of several scales, and so are its outputs. The function is checked with the gradient of the framework
under the convention, and with one that has one wrong entry.

What is right is decided in NumPy, without differences and without the checkers: gradients of the pieces at nearby
points by the chain rule, and whether a gradient is in their hull.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import torch
from rich.progress import track
from scipy.optimize import nnls

import interop
import jaxclamp
from interop._checks import gradcheck
from jaxclamp._checks import check_grads
from jaxclamp._shared.gradient_check import check
from jaxclamp._shared.tables import markdown_table

Array: TypeAlias = np.ndarray[Any, Any]

PRECISIONS = ("float64", "float32", "bfloat16", "float32 inside", "noise of 1e-3")
"""Of the arguments; the last two are float64, and the values of the function are less precise."""
FAULTS = ("times 1.01", "times 1.1", "times 2", "times -1", "zero", "unrelated")
NOISE = {"float32 inside": 2.0**-24, "noise of 1e-3": 1e-3}
"""Of the values, relative to the largest number in the function; that of float64 is used for the others."""
FORMS = 50  # each is compiled once
RTOL = {"float64": 1e-5, "float32": 2e-3, "bfloat16": 1e-1, "float32 inside": 1e-5, "noise of 1e-3": 1e-5}
"""The tolerances that the checkers document."""


# The pieces.


class Kind(NamedTuple):
    """A function of numbers in each framework, and its partial derivatives, which NumPy takes away from kinks."""

    in_jax: Callable[..., Any]
    in_torch: Callable[..., Any]
    value: Callable[..., Array]
    partials: tuple[Callable[..., Array], ...]


def _torch(name: str) -> Callable[..., Any]:
    return getattr(interop.native, name)  # type: ignore[no-any-return]


SMOOTH = {
    "sin": Kind(jnp.sin, torch.sin, np.sin, (np.cos,)),
    "exp": Kind(jnp.exp, torch.exp, np.exp, (np.exp,)),
    "tanh": Kind(jnp.tanh, torch.tanh, np.tanh, (lambda u: 1 - np.tanh(u) ** 2,)),
    "square": Kind(jnp.square, torch.square, np.square, (lambda u: 2 * u,)),
    "root": Kind(
        lambda u: jnp.sqrt(1 + u * u),
        lambda u: torch.sqrt(1 + u * u),
        lambda u: np.sqrt(1 + u * u),
        (lambda u: u / np.sqrt(1 + u * u),),
    ),
    "product": Kind(lambda u, v: u * v, lambda u, v: u * v, lambda u, v: u * v, (lambda u, v: v, lambda u, v: u)),
}
KINKED = {
    "relu": Kind(jaxclamp.relu, _torch("relu"), lambda u: np.maximum(u, 0), (lambda u: u > 0,)),
    "abs": Kind(jaxclamp.abs, _torch("abs"), np.abs, (np.sign,)),
    "leaky_relu": Kind(
        lambda u: jaxclamp.leaky_relu(u, 0.25),
        lambda u: _torch("leaky_relu")(u, 0.25),
        lambda u: np.where(u > 0, u, u / 4),
        (lambda u: np.where(u > 0, 1, 0.25),),
    ),
    "clamp": Kind(
        lambda u: jaxclamp.clamp(u, 0.0, 2.0),
        lambda u: _torch("clamp")(u, 0.0, 2.0),
        lambda u: np.clip(u, 0, 2),
        (lambda u: (u > 0) & (u < 2),),
    ),
    "maximum": Kind(jaxclamp.maximum, _torch("maximum"), np.maximum, (lambda u, v: u >= v, lambda u, v: v > u)),
    "minimum": Kind(jaxclamp.minimum, _torch("minimum"), np.minimum, (lambda u, v: u <= v, lambda u, v: v < u)),
    "amax": Kind(
        lambda *u: jaxclamp.amax(jnp.stack(u)),
        lambda *u: _torch("amax")(torch.stack(u), 0),
        lambda *u: np.max(u, axis=0),
        tuple(functools.partial(lambda i, *u: np.argmax(u, axis=0) == i, i) for i in range(3)),
    ),
}
KINDS = {**SMOOTH, **KINKED}


# The functions.


class Step(NamedTuple):
    """A piece, and which numbers it takes: earlier steps, or sums of the inputs, whose numbers are negative."""

    kind: str
    arguments: tuple[int, ...]


@dataclass(frozen=True)
class Form:
    """What is compiled: pieces of earlier ones and of sums of the inputs. Functions of one form differ in numbers."""

    sizes: tuple[int, ...]
    """How many numbers there are in each argument."""
    steps: tuple[Step, ...]
    sums: int

    def numbers(self, sums: Any, apply: Callable[[Kind, Sequence[Any]], Any]) -> list[Any]:
        """Return the results of all steps; ``apply`` says how a piece is applied."""
        results: list[Any] = []
        for step in self.steps:
            results.append(apply(KINDS[step.kind], [results[i] if i >= 0 else sums[-1 - i] for i in step.arguments]))
        return results

    @functools.cache  # noqa: B019  # there are few forms
    def in_jax(self, precision: str) -> Callable[..., jax.Array]:
        """Return the function of numbers and arguments, with the framework's gradient and with a wrong one."""

        def plain(numbers: Numbers, inputs: jax.Array) -> jax.Array:
            scaled = inputs / numbers.scale.astype(inputs.dtype)
            narrow = scaled.astype(jnp.float32) if precision == "float32 inside" else scaled
            sums = numbers.coefficients.astype(narrow.dtype) @ narrow + numbers.constants.astype(narrow.dtype)
            known = jnp.stack(self.numbers(sums, lambda kind, arguments: kind.in_jax(*arguments)))
            result = numbers.weights.astype(narrow.dtype) @ known + numbers.offset.astype(narrow.dtype)
            if precision == "noise of 1e-3":
                result = result + 1e-3 * _part(
                    1e5 * _part(1e9 * jnp.sin(1e4 * jax.lax.stop_gradient(scaled).sum())) ** 2
                )
            return (numbers.size.astype(result.dtype) * result).astype(inputs.dtype)

        @jax.jit
        def both(numbers: Numbers, *args: jax.Array) -> jax.Array:
            inputs = jnp.concatenate(args)
            zero = inputs - jax.lax.stop_gradient(inputs)
            faulty = plain(numbers, inputs + numbers.factors.astype(inputs.dtype) * zero)
            return jnp.stack([plain(numbers, inputs), faulty + numbers.extra.astype(inputs.dtype) @ zero])

        return both

    @functools.cache  # noqa: B019
    def jacobian_in_jax(self, precision: str) -> Callable[..., jax.Array]:
        return jax.jit(jax.jacrev(self.in_jax(precision), tuple(range(1, 1 + len(self.sizes)))))

    @functools.cache  # noqa: B019
    def values_in_jax(self, precision: str) -> Callable[..., jax.Array]:
        ends = np.cumsum(self.sizes)[:-1]
        return jax.jit(
            jax.vmap(lambda numbers, point: self.in_jax(precision)(numbers, *jnp.split(point, ends)), in_axes=(None, 0))
        )

    def in_torch(self, precision: str, numbers: Numbers, *args: torch.Tensor) -> torch.Tensor:
        """Compute in torch what `in_jax` does; of arguments with points along their first axis, of each."""
        inputs = torch.cat(args, dim=-1)

        def plain(inputs: torch.Tensor) -> torch.Tensor:
            scaled = inputs / torch.from_numpy(numbers.scale).to(inputs)
            narrow = scaled.float() if precision == "float32 inside" else scaled
            of = Numbers(*(torch.from_numpy(np.asarray(number)).to(narrow) for number in numbers))
            sums = narrow @ of.coefficients.T + of.constants
            known = self.numbers(sums.unbind(-1), lambda kind, arguments: kind.in_torch(*arguments))
            result = torch.stack(known, -1) @ of.weights + of.offset
            if precision == "noise of 1e-3":
                result = result + 1e-3 * _part(1e5 * _part(1e9 * torch.sin(1e4 * scaled.detach().sum(-1))) ** 2)
            return (of.size * result).to(inputs.dtype)

        zero = inputs - inputs.detach()
        factors, extra = (torch.from_numpy(number).to(inputs) for number in (numbers.factors, numbers.extra))
        return torch.stack([plain(inputs), plain(inputs + factors * zero) + zero @ extra], -1)


class Numbers(NamedTuple):
    """``size`` * (``offset`` + a weighed sum of the steps), of inputs divided by their scales, powers of two."""

    scale: Any
    coefficients: Any
    constants: Any
    weights: Any
    offset: Any
    size: Any
    factors: Any
    """What is added to 1 for the gradient of each entry in the wrong gradient, times its entry."""
    extra: Any
    """What is added to it."""


@dataclass(frozen=True)
class Function:
    """A form with numbers, at a point."""

    seed: int
    form: Form
    precision: str
    point: Array
    """Of the inputs divided by their scales: few bits, so that sums are exact, and ties are ties, in bfloat16."""
    numbers: Numbers
    fault: str
    entry: int

    @property
    def dtype(self) -> str:
        return self.precision if self.precision not in NOISE else "float64"

    def gradients(self, points: Array) -> tuple[Array, float]:
        """Compute the gradients at points, in units of the size and the scales, and the largest number on the way."""

        def apply(kind: Kind, arguments: Sequence[tuple[Array, Array]]) -> tuple[Array, Array]:
            values = [value for value, _ in arguments]
            partials = [partial(*values) for partial in kind.partials]
            parts = [p[:, None] * gradient for p, (_, gradient) in zip(partials, arguments, strict=True)]
            return kind.value(*values), np.asarray(sum(parts))

        sums = points @ self.numbers.coefficients.T + self.numbers.constants
        rows = [np.broadcast_to(row, points.shape) for row in self.numbers.coefficients]
        known = self.form.numbers(list(zip(sums.T, rows, strict=True)), apply)
        gradients = sum(w * gradient for w, (_, gradient) in zip(self.numbers.weights, known, strict=True))
        largest = max(float(np.abs(value).max()) for value, _ in known)
        return np.asarray(gradients), max(abs(float(self.numbers.offset)), 2 * largest, float(np.abs(sums).max()))


def _part(number: Any) -> Any:
    """Return the digits behind the point."""
    return number % 1.0


@functools.cache
def form(number: int) -> Form:
    """Draw the form of that number."""
    random = np.random.default_rng([0, number])
    steps: list[Step] = []
    sums = 0
    for _ in range(random.integers(2, 6)):
        kind = str(random.choice(list(KINKED if random.random() < 0.6 else SMOOTH)))
        arguments = []
        for _ in range(len(KINDS[kind].partials)):
            is_earlier = bool(steps) and random.random() < 0.4
            arguments.append(int(random.integers(len(steps))) if is_earlier else -1 - sums)
            sums += not is_earlier
        steps.append(Step(kind, tuple(arguments)))
    sums += not sums
    return Form(tuple(map(int, random.integers(1, 4, random.integers(1, 4)))), tuple(steps), sums)


def drawn(seed: int) -> Function:
    """Draw the function of that number."""
    random = np.random.default_rng([1, seed])
    shape = form(seed % FORMS)
    precision = PRECISIONS[seed // FORMS % len(PRECISIONS)]
    n = sum(shape.sizes)
    while True:
        # One scale for an argument, or for each entry.
        powers = random.integers(-20, 21, n)
        if random.random() < 0.7:
            powers = np.repeat(powers[: len(shape.sizes)], shape.sizes)
        point = random.integers(-31, 32, n) / 16
        if random.random() < 0.3:
            point[random.random(n) < 0.5] = 0.0
        coefficients = random.choice([-2, -1, 1, 2], (shape.sums, n)) * (random.random((shape.sums, n)) < 2 / n)
        coefficients = coefficients.astype(float)
        constants = random.integers(-16, 17, shape.sums) / 16
        for step in shape.steps:
            sums = [-1 - i for i in step.arguments if i < 0]
            if step.kind in KINKED and len(sums) == len(step.arguments) and random.random() < 0.5:
                at = (
                    random.integers(-16, 17) / 16
                    if len(sums) > 1
                    else 2.0 * (step.kind == "clamp" and random.random() < 0.5)
                )
                constants[sums] = at - coefficients[sums] @ point  # a tie
        weights = random.choice([-1.0, -0.5, 0.5, 1.0, 2.0], len(shape.steps))
        offset, size = random.choice([0.0, 0.0, 0.0, 1.0, 64.0]), 2.0 ** random.integers(-20, 21)
        scale = 2.0**powers
        numbers = Numbers(scale, coefficients, constants, weights, np.float64(offset), size, np.zeros(n), np.zeros(n))
        function = Function(seed, shape, precision, point, numbers, str(random.choice(FAULTS)), 0)
        (gradient,), largest = function.gradients(point[None])
        if largest < 100 and np.abs(gradient).max() > 0.01:
            break
    moving = np.flatnonzero(np.abs(gradient) > 0.02 * np.abs(gradient).max())
    entry = int(random.choice(moving))
    factors, extra = np.zeros(n), np.zeros(n)
    factors[entry] = {"times 1.01": 0.01, "times 1.1": 0.1, "times 2": 1.0, "times -1": -2.0}.get(function.fault, -1.0)
    extra[entry] = random.normal() * size / scale[entry] if function.fault == "unrelated" else 0.0
    return dataclasses.replace(function, entry=entry, numbers=numbers._replace(factors=factors, extra=extra))


def distance(corners: Array, gradient: Array) -> float:
    """Compute the distance of a gradient from the hull of the corners."""
    heavy = 1e4 * max(1.0, float(np.abs(corners).max()))
    rows = np.vstack([corners.T, np.full(len(corners), heavy)])
    weights, _ = nnls(rows, np.append(gradient, heavy))
    return float(np.linalg.norm(weights / weights.sum() @ corners - gradient))


# A check of the right gradient, and of a wrong one.


class Outcome(NamedTuple):
    precision: str
    fault: str
    """Empty for the gradient of the framework."""
    truth: str
    """``right``, ``wrong``, or ``cannot tell``, if neither values nor gradients are precise enough."""
    said: str


class _InJax(check_grads._Flat):
    """A function for `check_grads`, whose values are compiled once for a form, not once for each function."""

    def __init__(self, function: Function, args: tuple[Any, ...]) -> None:
        program = function.form.in_jax(function.precision)
        # As arrays of JAX: those of NumPy, in 32 and then in 64 bits, make it call a program of the other width.
        super().__init__(lambda *args: program(Numbers(*map(jnp.asarray, function.numbers)), *args), args)
        self._function = function

    def reverse(self, point: Array, wide: bool = False) -> Array:
        with jax.enable_x64(True) if wide else contextlib.nullcontext():
            arrays = self._split(point, np.dtype(np.float64) if wide else None)
            parts = self._function.form.jacobian_in_jax(self._function.precision)(self._function.numbers, *arrays)
            return np.concatenate([np.asarray(part, np.float64) for part in parts], axis=1)

    def values(self, wide: bool = True) -> tuple[Callable[[Array], Array], float]:
        if not wide:
            return super().values(wide)
        compiled = self._function.form.values_in_jax(self._function.precision)

        def values(points: Array) -> Array:
            with jax.enable_x64(True):
                padded = np.concatenate([points, np.repeat(points[:1], -len(points) % 256, axis=0)])
                parts = [compiled(self._function.numbers, part) for part in padded.reshape(-1, 256, points.shape[1])]
                return np.concatenate(parts)[: len(points)]

        return values, 2.0**-52


class _InTorch(gradcheck._Flat):
    """A function for `gradcheck`, whose values are computed at many points at once, as it allows that."""

    def __init__(self, function: Function, args: tuple[Any, ...]) -> None:
        self._of_many = functools.partial(function.form.in_torch, function.precision, function.numbers)
        super().__init__(self._of_many, args)

    def values(self, wide: bool = True) -> tuple[Callable[[Array], Array], float]:
        if not wide:
            return super().values(wide)

        def values(points: Array) -> Array:
            with torch.no_grad():
                return self._of_many(torch.from_numpy(points)).numpy()

        return values, 2.0**-52


def checked(function: Function, framework: str) -> Iterator[Outcome]:
    """Yield what the checker says of the framework's gradient and of a wrong one, and what is so."""
    random = np.random.default_rng([2, function.seed])
    _, largest = function.gradients(function.point[None])
    nearby = function.point + 2.0**-30 * random.uniform(-1, 1, (400, function.point.size))
    corners = np.unique(np.round(function.gradients(nearby)[0], 6), axis=0)
    steepest = float(np.abs(corners).max())
    scale = function.numbers.scale
    parts = np.split(function.point * scale, np.cumsum(function.form.sizes)[:-1])
    with jax.enable_x64(function.dtype == "float64"):
        if framework == "jax":
            flat: Any = _InJax(function, tuple(jnp.asarray(part, function.dtype) for part in parts))
        else:
            dtype = getattr(torch, function.dtype)
            tensors = tuple(torch.tensor(part, dtype=dtype, requires_grad=True) for part in parts)
            flat = _InTorch(function, tensors)
        flat.ties_at = lambda point: {}  # lines are not asked for here
        both = function.seed % 4 == 0
        report = check(
            flat, "", forward=both, reverse=True, atol=None, rtol=None, eps=None, scale=_scale_passed(function)
        )
        jacobian, wide = (flat.reverse(flat.point, w) * scale / function.numbers.size for w in (False, True))
    # The error of a difference is noise / t + t^2 or more, which is least at the cube root of the noise.
    noise = NOISE.get(function.precision, 2.0**-52) * (1.0 if function.precision == "noise of 1e-3" else largest)
    unresolved = 10 * noise ** (2 / 3) * max(steepest, largest) ** (1 / 3)
    rounding = np.linalg.norm(jacobian - wide, axis=1)
    for row, fault in enumerate(["", function.fault]):
        away = distance(corners, jacobian[row])
        size = np.abs(jacobian[row]).max() if len(corners) > 1 else np.abs(jacobian[row, function.entry])
        cannot = max(unresolved, 3 * RTOL[function.precision] * size + 3 * float(rounding[row]))
        # Rounding makes no gradient wrong that is right in float64. But op by op, terms whose kinks cancel have a
        # gradient outside of the hull, in float64 too.
        is_rounded = not fault and distance(corners, wide[row]) <= 1e-5 * steepest and away < cannot
        is_right = away <= 1e-5 * steepest or is_rounded
        kinds = {verdict.kind for verdict in report.verdicts if verdict.output == f"out[{row}]"}
        said = "wrong" if kinds & FAILING else "not checkable" if "not checkable" in kinds else "right"
        yield Outcome(
            function.precision, fault, "right" if is_right else "wrong" if away > cannot else "cannot tell", said
        )


def _scale_passed(function: Function) -> list[Array] | None:
    """Return the scales, if there are entries that are 0, from which nobody could tell them."""
    parts = np.split(function.numbers.scale, np.cumsum(function.form.sizes)[:-1])
    return parts if (function.point == 0).any() else None


FAILING = {"wrong", "not a member", "off the branch", "modes differ"}


def table(outcomes: Sequence[Outcome]) -> str:
    """Count, for each precision, what the checker says of right gradients and of wrong ones that can be told."""
    counts = collections.Counter((o.precision, o.truth, o.said) for o in outcomes)
    head = ["", *(f"{truth}: {said}" for truth in ("right", "wrong") for said in ("right", "not checkable", "wrong"))]
    rows = [[name, *(str(counts[name, *column.split(": ")]) for column in head[1:])] for name in PRECISIONS]
    return markdown_table(head, rows)


def study(framework: str, seeds: Sequence[int]) -> list[Outcome]:
    return [outcome for seed in seeds for outcome in checked(drawn(seed), framework)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("frameworks", nargs="*", default=["jax", "torch"])
    parser.add_argument("--functions", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    for framework in arguments.frameworks:
        seeds = track(range(arguments.seed, arguments.seed + arguments.functions), framework)
        print(f"{framework}\n{table(study(framework, seeds))}")


if __name__ == "__main__":
    main()
