"""The parity matrix: what every op answers at every tie, by definition, here and natively, as data."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from interop._bridge.ops import TORCH_OPS
from interop.native import NATIVE
from interop.parity.adapters import ADAPTERS
from interop.parity.frameworks import Framework, Jax, Torch, total
from interop.parity.oracle import min_norm_gradient
from jaxclamp import CONVENTIONS, OPS, Op
from jaxclamp._counterparts import Counterpart

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

DTYPES = ("float32", "float64", "bfloat16", "float16")
OURS = ("jaxclamp", "interop", "native")
"""The ops in JAX, those programs in torch, and torch's own kernels under the convention."""
THEIRS: dict[str, type[Framework]] = {"jax": Jax, "torch": Torch, **ADAPTERS}
FRAMEWORKS = (*OURS, *THEIRS)


@dataclass(frozen=True)
class Answer:
    """The gradient that one spelling gives, flattened over the active arguments in their order."""

    framework: str
    version: str
    spelling: str
    gradient: tuple[float, ...]
    agrees: bool
    conventions: tuple[str, ...]
    """Where it disagrees, the values of ``ties=`` under which jaxclamp gives this gradient, if the op takes any."""


@dataclass(frozen=True)
class Row:
    """One op at one tie, with some of its arguments active, in one dtype."""

    op: str
    arguments: dict[str, Any]
    active: tuple[str, ...]
    inactive: str
    """How the inactive arguments are given: as "numbers", as "arrays", or "none" if all are active."""
    dtype: str
    definition: tuple[float, ...]
    answers: tuple[Answer, ...]

    @property
    def agrees(self) -> bool:
        return all(answer.agrees for answer in self.answers)


@functools.cache
def theirs(name: str) -> Framework:
    """The framework of that name; ImportError where it is not installed."""
    return THEIRS[name]()


def absent(frameworks: Iterable[str] = FRAMEWORKS) -> dict[str, str]:
    """Why those of the ``frameworks`` that cannot be imported cannot, and the cure, by name."""
    reasons = {}
    for name in ADAPTERS.keys() & frameworks:
        try:
            theirs(name)
        except ImportError as error:
            reasons[name] = f"{error}; pip install {ADAPTERS[name].requirement}"
    return dict(sorted(reasons.items()))


def counterparts(op: Op) -> list[Counterpart]:
    """The spellings of ``op`` in the other frameworks, installed or not."""
    adapted = (adapter.counterparts[op.name] for adapter in ADAPTERS.values() if op.name in adapter.counterparts)
    return [*op.counterparts, *map(Counterpart, adapted)]


def matrix(
    ops: Iterable[Op] | None = None, dtypes: Sequence[str] = DTYPES, frameworks: Sequence[str] = FRAMEWORKS
) -> Iterator[Row]:
    """The rows for ``ops`` (all by default), one at a time, since asking every framework takes a while.

    Of the ``frameworks``, those that are installed answer.
    """
    missing = absent(frameworks)
    present = [framework for framework in frameworks if framework not in missing]
    for dtype in dtypes:
        for op in OPS.values() if ops is None else ops:
            for arguments, active, inactive in cases(op):
                yield _row(op, arguments, active, inactive, dtype, present)


def cases(op: Op) -> Iterator[tuple[dict[str, Any], tuple[str, ...], str]]:
    """(arguments, active arguments, how the inactive ones are given) for every tie and every set of active inputs."""
    names = list(op.signature.parameters)
    for tie in op.tie_points:
        arguments = dict(zip(names, tie, strict=False))
        differentiable = [name for name, value in arguments.items() if is_differentiable(value)]
        for size in range(1, len(differentiable) + 1):
            for active in itertools.combinations(differentiable, size):
                if size == len(differentiable):
                    yield arguments, active, "none"
                elif isinstance(arguments[names[0]], float) and active == (names[0],):
                    yield arguments, active, "numbers"
                    yield arguments, active, "arrays"
                else:
                    yield arguments, active, "arrays"


def is_differentiable(value: Any) -> bool:
    """Whether an argument of a tie stands for an array of floats, rather than for a size, an axis or a flag."""
    return isinstance(value, float | tuple) and np.asarray(value).dtype.kind == "f"


def round_to(dtype: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """``arguments`` with the numbers that ``dtype`` can hold, as float64 arrays, in place of floats and tuples."""
    return {
        name: np.asarray(value, jnp.dtype(dtype)).astype(np.float64) if is_differentiable(value) else value
        for name, value in arguments.items()
    }


def _row(
    op: Op, arguments: dict[str, Any], active: tuple[str, ...], inactive: str, dtype: str, frameworks: Sequence[str]
) -> Row:
    rounded = round_to(dtype, arguments)
    expected = definition(op, rounded, active)
    with jax.enable_x64(True):
        value = float(total(op.function(**rounded)))
    relative = 4 * float(jnp.finfo(dtype).eps)
    given = {
        name: v.item() if inactive == "numbers" and name not in active and isinstance(v, np.ndarray) else v
        for name, v in rounded.items()
    }
    answers = []
    for framework, spelling, function, differentiate in _spellings(op, arguments, active, frameworks):
        try:
            found, gradient = differentiate.value_and_gradient(function, given, active, dtype)
            if not math.isclose(found, value, rel_tol=relative, abs_tol=1e-3):
                raise TypeError(f"{spelling} is another function there, as some clips are with min > max.")
        except TypeError:
            if framework in ("jaxclamp", "interop"):  # they take every form
                raise
            continue  # this spelling does not take the arguments in this form
        flat = _flat(gradient, active)
        agrees = bool((np.abs(flat - expected) <= 1e-3 + relative * np.abs(expected)).all())
        conventions = () if agrees else _reproducing(op, given, active, dtype, flat)
        answers.append(Answer(framework, differentiate.version, spelling, tuple(flat.tolist()), agrees, conventions))
    return Row(op.name, arguments, active, inactive, dtype, tuple(expected.tolist()), tuple(answers))


def _reproducing(
    op: Op, given: Mapping[str, Any], active: tuple[str, ...], dtype: str, gradient: Array
) -> tuple[str, ...]:
    if not op.has_conventions:
        return ()
    numbers = {n: np.asarray(v, jnp.dtype(dtype)) for n, v in given.items() if isinstance(v, float | np.ndarray)}
    static = tuple((n, v) for n, v in given.items() if n not in numbers)
    with jax.enable_x64(True):
        found = _under_each_convention(op, static, active)(numbers)
    return tuple(ties for ties, other in found.items() if np.allclose(gradient, _flat(other, active), rtol=1e-3))


@functools.cache
def _under_each_convention(op: Op, static: tuple[tuple[str, Any], ...], active: tuple[str, ...]) -> Callable[..., Any]:
    """The gradients by the values of ``ties=``, in one program, since each takes longer to compile than to run."""

    def gradients(numbers: Mapping[str, jax.Array]) -> dict[str, Any]:
        def of_active(chosen: Mapping[str, jax.Array], ties: str) -> Any:
            return total(op.function(**{**numbers, **dict(static), **chosen}, ties=ties))

        return {ties: jax.grad(of_active)({name: numbers[name] for name in active}, ties) for ties in CONVENTIONS}

    return jax.jit(gradients)


def _flat(gradient: Mapping[str, Array], active: tuple[str, ...]) -> Array:
    return np.concatenate([gradient[name].ravel() for name in active])


def _spellings(
    op: Op, arguments: Mapping[str, Any], active: tuple[str, ...], frameworks: Sequence[str]
) -> Iterator[tuple[str, str, Callable[[Mapping[str, Any]], Any], Framework]]:
    if "jaxclamp" in frameworks:
        yield "jaxclamp", f"jaxclamp.{op.name}", lambda given: op.function(**given), theirs("jax")
    if "interop" in frameworks:
        yield "interop", f"interop.{op.name}", lambda given: TORCH_OPS[op.name](*given.values()), theirs("torch")
    if "native" in frameworks:
        yield "native", f"interop.native.{op.name}", lambda given: NATIVE[op.name](*given.values()), theirs("torch")
    parameters = op.signature.parameters
    for counterpart in counterparts(op):
        unknown = arguments.keys() - counterpart.names
        same = all(name not in active and arguments[name] == parameters[name].default for name in unknown)
        if counterpart.framework in frameworks and same:
            yield counterpart.framework, counterpart.name, counterpart, theirs(counterpart.framework)


def definition(op: Op, arguments: Mapping[str, Any], active: tuple[str, ...]) -> Array:
    """The gradient that the oracle finds, flattened over the active arguments; in float64, since it knows no rounding.

    It is that of the sum of the outputs, and an op answers for each output by itself. So no two outputs may depend on
    one argument at a tie, as they do in overlapping windows.

    The arguments are float64 arrays, or static (None, ints, ...).
    """
    point = np.concatenate([arguments[name].ravel() for name in active])
    ends = np.cumsum([arguments[name].size for name in active])[:-1]
    constants = {n: v for n, v in arguments.items() if n not in active and isinstance(v, np.ndarray)}
    static = tuple((n, v) for n, v in arguments.items() if not isinstance(v, np.ndarray))

    def values(points: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        columns = zip(active, np.split(points, ends, axis=1), strict=True)
        batch = {name: column.reshape(-1, *arguments[name].shape) for name, column in columns}
        with jax.enable_x64(True):
            return np.asarray(_values(op, static)(batch, constants), np.float64)

    return min_norm_gradient(values, point)


@functools.cache
def _values(op: Op, static: tuple[tuple[str, Any], ...]) -> Callable[..., jax.Array]:
    def value(active: Mapping[str, jax.Array], constants: Mapping[str, jax.Array]) -> jax.Array:
        result: jax.Array = total(op.function(**active, **constants, **dict(static)))
        return result

    return jax.jit(jax.vmap(value, in_axes=(0, None)))
