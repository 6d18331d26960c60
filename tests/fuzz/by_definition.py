"""Compositions of ops under random transformations of JAX: derivatives against the definition of the convention.

How torch runs them is in `by_definition_torch`. What fails is described as small as it can be.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

import jaxclamp
from tests.fuzz import definition, running
from tests.fuzz.definition import DTYPES, POOLS, Array
from tests.fuzz.programs import PARAMETERS, ROWS, Call, Composition, Ref, draw_composition
from tests.fuzz.running import WRAPPERS, Tree, failure, mesh, over_rows, together

Calls: TypeAlias = Mapping[str, Callable[..., Any]]

TOLERANCE = {"float32": 1e-4, "float64": 1e-6, "bfloat16": 0.06, "float16": 0.02}
"""Shares of the gradient at a tie differ by more, and errors of rounding are below.

Torch's hardsigmoid has the slope 1/6 in float32 for float64 too."""


# What a program calls, in each dialect.


def first_of(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **kwargs: function(*args, **kwargs)[0]


JAXCLAMP: Calls = {
    **{name: op.function for name, op in jaxclamp.OPS.items()},
    **{name: first_of(getattr(jaxclamp, name)) for name in ("max_with_indices", "min_with_indices")},
    **{name: getattr(jnp, name) for name in ("add", "subtract", "multiply", "transpose")},
    "flip": lambda x: jnp.flip(x, -1),
    "halve": lambda x: x[..., : max(1, x.shape[-1] // 2)],
    "stop_gradient": jax.lax.stop_gradient,
}
"""The ops themselves."""


def _reduce_window(
    x: jax.Array, kernel_size: Any, stride: int | None, padding: int, dilation: int, ceil_mode: bool
) -> jax.Array:
    batch = (1,) * (x.ndim - len(kernel_size))
    paddings = [(0, 0)] * len(batch)
    for length, kernel in zip(x.shape[len(batch) :], kernel_size, strict=True):
        windows = definition.windows_along(length, kernel, stride or kernel, padding, dilation, ceil_mode)
        reached = (len(windows) - 1) * (stride or kernel) + dilation * (kernel - 1) + 1
        paddings.append((padding, max(0, reached - length - padding)))
    strides = batch + (tuple(kernel_size) if stride is None else (stride,) * len(kernel_size))
    dilations = batch + (dilation,) * len(kernel_size)
    return jax.lax.reduce_window(
        x, -jnp.inf, jax.lax.max, (*batch, *kernel_size), strides, paddings, window_dilation=dilations
    )


JAX_NATIVE: Calls = {
    **JAXCLAMP,
    **{name: getattr(jnp, name) for name in ("maximum", "minimum", "fmax", "fmin", "abs")},
    **{name: getattr(jax.nn, name) for name in ("relu", "relu6", "leaky_relu", "elu", "selu", "celu")},
    **{"hardsigmoid": jax.nn.hard_sigmoid, "hardswish": jax.nn.hard_swish},
    **{"clamp": jnp.clip, "clamp_min": jnp.maximum, "clamp_max": lambda x, max: jnp.clip(x, max=max)},
    "hardtanh": lambda x, min_val, max_val: jnp.clip(x, min_val, max_val),
    **{"max_with_indices": jnp.max, "min_with_indices": jnp.min, "amax": jnp.max, "amin": jnp.min},
    **dict.fromkeys(POOLS, _reduce_window),
}
"""JAX's own functions, for `jaxclamp.min_norm`; where it has none, or another formula, the op."""

DIALECTS: Mapping[str, Calls] = {"jaxclamp": JAXCLAMP, "jaxclamp.min_norm": JAX_NATIVE}


# How a program is run.


def run_in_jax(program: Composition, calls: Calls, inputs: Sequence[jax.Array]) -> jax.Array:
    known = list(inputs)
    for step in program.steps:
        operands = [np.asarray(o, DTYPES[program.dtype]) if isinstance(o, np.ndarray) else o for o in step.operands]
        operands = [known[o.number] if isinstance(o, Ref) else o for o in operands]
        if step.op == "scan":
            carry, xs = operands
            # Never chosen, xs[0] makes the carry an array for each device where xs is one.
            carry = jnp.where(False, jax.lax.stop_gradient(xs[0]), jnp.broadcast_to(carry, xs.shape[1:]))
            known.append(jax.lax.scan(lambda c, x, op=step.static["op"]: (calls[op](c, x), None), carry, xs)[0])
        else:
            known.append(called(step, JAXCLAMP if _is_of_jaxclamp(step) else calls, operands))
    return known[-1]


def called(step: Call, calls: Calls, operands: Sequence[Any], names: Mapping[str, str] = {}) -> Any:
    """The call, where ``names`` has the keywords that are spelled otherwise."""
    keywords = dict(zip(PARAMETERS.get(step.op, ())[step.by_keyword :], operands[step.by_keyword :], strict=False))
    keywords |= step.static
    return calls[step.op](*operands[: step.by_keyword], **{names.get(n, n): value for n, value in keywords.items()})


def _is_of_jaxclamp(step: Call) -> bool:
    """Whether JAX's own function has other names for the arguments, no such one, or another gradient by its formula."""
    return "ties" in step.static or (step.op in PARAMETERS and (step.by_keyword < 2 or "where" in step.static))


# How it is transformed.


@dataclass(frozen=True)
class Form:
    """In which form a program is run and differentiated."""

    dialect: str
    mode: str
    """How it is differentiated."""
    wrapped: tuple[str, ...]
    """What is around the program, from the inside out."""
    batched: str
    """How the rows are brought in."""
    axes: tuple[int, ...]
    """For vmap: where the axis of the rows is, for each argument."""
    is_batched_first: bool
    """Whether the batch is differentiated, rather than the derivative batched."""

    def __str__(self) -> str:
        first, then = (self.batched, self.mode) if self.is_batched_first else (self.mode, self.batched)
        around = "".join(f", in {name}" for name in self.wrapped)
        return f"{self.dialect}{around}; {first} (axes {self.axes}), then {then}"


_REVERSE = ("grad", "vjp", "linearize and transpose", "backward")
_FORWARD = ("jvp", "forward_ad")
IN_BOTH = ("grad", "vjp", "jvp", "jacrev", "jacfwd", "hvp")
JAX_MODES = (*IN_BOTH, "linearize and transpose")
DEVICES = ("shard_map", "sharded")
JAX_WRAPPERS = ("jit", "checkpoint", "checkpoint of all", "cond", "scan", "vmap")


def drawn_in_jax(program: Composition, batched: Sequence[str]) -> Form:
    choices = random.Random(f"form jax {program.seed}")
    mode = choices.choice([mode for mode in JAX_MODES if mode != "hvp" or program.is_piecewise_linear])
    how = choices.choice(batched)
    # At NaN, JAX's own relu has another gradient.
    dialect = "jaxclamp" if program.is_special else choices.choice([*DIALECTS])
    wrapped = choices.choices(JAX_WRAPPERS, k=choices.choice((0, 1, 1, 2)))
    if how == "shard_map":  # there JAX 0.10 cannot differentiate x * constant in a cond: pvary, it says
        wrapped = [name for name in wrapped if name != "cond"]
    if dialect == "jaxclamp.min_norm":
        wrapped.insert(choices.randint(0, len(wrapped)), "min_norm")
    return drawn_form(choices, program, dialect, mode, wrapped, how)


def drawn_form(
    choices: random.Random, program: Composition, dialect: str, mode: str, wrapped: Sequence[str], batched: str
) -> Form:
    """That form; where the rows lie, and whether the batch is differentiated, is drawn."""
    axes = tuple(choices.randrange(-1, points.ndim) for points in program.inputs)
    is_batched_first = batched == "vmap" and mode in ("grad", "vjp", "jvp") and choices.random() < 0.5
    return Form(dialect, mode, tuple(wrapped), batched, axes, is_batched_first)


def arguments_of(program: Composition) -> list[Array]:
    """The active inputs, the others, the cotangent of the result, and the tangents of the active inputs."""
    pairs = [*zip(program.inputs, program.active, strict=True)]
    inputs = [x for x, active in pairs if active] + [x for x, active in pairs if not active]
    return [*inputs, *program.directions("result"), *program.directions("inputs")]


Mode: TypeAlias = Callable[[Callable[..., Any], Sequence[Any], Any, Sequence[Any]], Tree]
"""From a function, its arguments, a cotangent and tangents to the value and the derivative."""


def differentiated(
    api: Any,
    own_modes: Mapping[str, Mode],
    program: Composition,
    form: Form,
    whole: Callable[..., Any],
    batch: Callable[..., Any],
) -> Any:
    """From the arguments to the value and the derivative, with the functions of `jax` or `torch.func`.

    ``own_modes`` are those that the other framework does not have.
    """
    count, numbers = sum(program.active), tuple(range(sum(program.active)))

    def of_active_first(*inputs: Any) -> Any:
        moving, held = iter(inputs[:count]), iter(inputs[count:])
        return whole(*(next(moving if active else held) for active in program.active))

    function = batch(of_active_first) if form.is_batched_first else of_active_first

    def run(*arguments: Any) -> Tree:
        moving, held, (cotangent, *tangents) = (
            arguments[:count],
            arguments[count : len(program.inputs)],
            arguments[len(program.inputs) :],
        )

        def restricted(*moving: Any) -> Any:
            return function(*moving, *held)

        def loss(*moving: Any) -> tuple[Any, Any]:
            value = restricted(*moving)
            return (value * cotangent).sum(), value

        if form.mode in own_modes:
            return own_modes[form.mode](restricted, moving, cotangent, tangents)
        gradient = api.grad(loss, argnums=numbers, has_aux=True)
        match form.mode:
            case "grad":
                derivative, value = gradient(*moving)
                return value, list(derivative)
            case "hvp":
                (_, value), (derivative, _) = api.jvp(gradient, tuple(moving), tuple(tangents))
                return value, list(derivative)
            case "vjp":
                value, pull = api.vjp(restricted, *moving)
                return value, list(pull(cotangent))
            case "jvp":
                return api.jvp(restricted, tuple(moving), tuple(tangents))
        return restricted(*moving), list(getattr(api, form.mode)(restricted, argnums=numbers)(*moving))

    return run if form.is_batched_first else batch(run)


def vmapped(vmap: Any, moveaxis: Any, form: Form, function: Callable[..., Any]) -> Callable[..., Any]:
    def run(*arguments: Any) -> Tree:
        axes = [axis % x.ndim for axis, x in zip(itertools.cycle(form.axes), arguments, strict=False)]
        return vmap(function, tuple(axes))(*(moveaxis(x, 0, axis) for x, axis in zip(arguments, axes, strict=True)))

    return run


def in_jax(program: Composition, form: Form) -> Callable[..., Tree]:
    """The function of the arguments that answers for all rows."""
    whole = functools.partial(_called_with_all, functools.partial(run_in_jax, program, DIALECTS[form.dialect]))
    for name in form.wrapped:
        whole = jaxclamp.min_norm(whole) if name == "min_norm" else WRAPPERS[name](whole)

    def batch(function: Callable[..., Any]) -> Callable[..., Any]:
        if form.batched == "vmap":
            return vmapped(jax.vmap, jnp.moveaxis, form, function)
        return over_rows(form.batched, function)

    return differentiated(jax, {"linearize and transpose": linearized}, program, form, whole, batch)


def linearized(function: Callable[..., Any], inputs: Sequence[Any], cotangent: Any, _: Sequence[Any]) -> Tree:
    value, push = jax.linearize(function, *inputs)
    return value, list(jax.linear_transpose(push, *inputs)(cotangent))


def _called_with_all(function: Callable[[Sequence[Any]], Any], *inputs: Any) -> Any:
    return function(inputs)


# What programs answer.

Pair: TypeAlias = tuple[Composition, Form]
Answers: TypeAlias = running.Answers[Pair]


def answers_of_jax(pairs: Sequence[Pair], compiled: bool = True) -> list[Tree]:
    functions = [in_jax(*pair) for pair in pairs]
    arguments: Any = [[a.astype(DTYPES[program.dtype]) for a in arguments_of(program)] for program, _ in pairs]

    with jax.enable_x64(any(program.dtype == "float64" for program, _ in pairs)):
        if any(form.batched == "sharded" for _, form in pairs):
            arguments = jax.device_put(arguments, NamedSharding(mesh(), PartitionSpec("rows")))
        return together(functions, arguments, compiled)


# The comparison with the definition.


def disagreement(pair: Pair, answer: Tree) -> str:
    """How the values and the derivative differ from the definition; empty if they do not."""
    program, form = pair
    value, *leaves = (np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(answer))
    (cotangent,), tangents = program.directions("result"), program.directions("inputs")
    tolerance = TOLERANCE[program.dtype]
    for row, expected in enumerate(program.expected[: len(value)]):
        allowed = np.where(expected.exact, 0, tolerance)
        near = np.isclose(value[row], expected.value, rtol=allowed, atol=allowed, equal_nan=True)
        if value[row].shape != expected.value.shape or not near.all():
            return f"wrong value {value[row].tolist()} in row {row}, by definition {expected.value.tolist()}"
        found = np.concatenate(
            [
                leaf[row].reshape(len(expected.jacobian), -1) if form.mode[:3] == "jac" else leaf[row].ravel()
                for leaf in leaves
            ],
            -1,
        )
        wanted, bound = expected.jacobian, expected.magnitude
        if form.mode in _REVERSE:
            wanted, bound = cotangent[row].ravel() @ wanted, np.abs(cotangent[row]).ravel() @ bound
        elif form.mode in _FORWARD:
            direction = np.concatenate([tangent[row].ravel() for tangent in tangents])
            wanted, bound = wanted @ direction, bound @ np.abs(direction)
        elif form.mode == "hvp":
            wanted = bound = np.zeros(wanted.shape[1])
        if found.shape != wanted.shape or not (np.abs(found - wanted) <= tolerance * (1 + bound)).all():
            return f"wrong derivative {found.tolist()} in row {row}, by definition {wanted.tolist()}"
    return ""


def failures(pairs: Sequence[Pair], answers: Answers) -> list[str]:
    """A description of each program that disagrees with the definition or raises, made small."""
    texts = []
    for wide in (False, True):  # 64 bits need JAX's mode of that name, for all programs that run together
        alike = [pair for pair in pairs if (pair[0].dtype == "float64") == wide]
        if alike:
            texts += running.failures(alike, answers, disagreement, functools.partial(described, answers=answers))
    return texts


def described(pair: Pair, reason: str, answers: Answers) -> str:
    """A failing program and its form, made as small as they can be."""
    smaller = _smaller(*pair)
    while (candidate := next(smaller, None)) is not None:
        with contextlib.suppress(definition.UndecidedError):
            other = failure(candidate, answers, disagreement) if candidate[0].expected[0].active else ""
            if other.split()[:2] == reason.split()[:2]:  # a wrong value, a wrong derivative, an exception of one kind
                pair, reason, smaller = candidate, other, _smaller(*candidate)
    program, form = pair
    return f"{program}\n{form}\n{reason}\n"


def _smaller(program: Composition, form: Form) -> Iterator[Pair]:
    is_torch = form.dialect.startswith("interop")
    simplest = {
        "wrapped": tuple({*form.wrapped} & {"min_norm"}),
        "batched": "loop" if is_torch else "vmap",
        "mode": "backward" if is_torch else "grad",
    }
    for name, value in simplest.items():
        if getattr(form, name) != value:
            yield program, dataclasses.replace(form, is_batched_first=False, **{name: value})
    for less in program.smaller():
        if len(less.inputs[0]) == ROWS or form.batched not in DEVICES:
            yield less, form


# What is drawn.


def of_jax(seeds: Iterable[int], *batched: str) -> list[Pair]:
    programs = [draw_composition(seed, "jax") for seed in seeds]
    return [(program, drawn_in_jax(program, batched or ("vmap", "vmap", "map"))) for program in programs]


def check(pairs: Sequence[Pair], answers: Answers) -> None:
    assert not (wrong := failures(pairs, answers)), "\n".join(wrong)


def check_what_is_drawn(pairs: Sequence[Pair], modes: Sequence[str]) -> None:
    """Every op but norms, every way to differentiate it, and ties in most programs."""
    programs = [program for program, _ in pairs]
    # Roots are no small integers: whether the next op ties would be a matter of rounding.
    drawn = jaxclamp.OPS.keys() - {"hypot", "norm"}
    assert drawn <= {step.op for program in programs for step in program.steps}
    assert {form.mode for _, form in pairs} == {*modes}
    assert {program.dtype for program in programs} == {*DTYPES}
    assert sum(any(row.tied for row in program.expected) for program in programs) > 0.8 * len(programs)
    assert sum(len(program.steps) > 2 for program in programs) > 0.5 * len(programs)


def failures_of(seeds: range) -> list[str]:
    """Of the compositions of so many seeds: most on one device, some over several, and a few op by op."""
    return [
        *failures(of_jax(seeds[:20]), answers_of_jax),
        *failures(of_jax(seeds[20:26], *DEVICES), answers_of_jax),
        *failures(of_jax(seeds[26:]), functools.partial(answers_of_jax, compiled=False)),
    ]
