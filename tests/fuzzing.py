"""Runs random programs under random transformations of JAX and torch, and compares them with the definition.

For as long as wanted, with one line for each round: python tests/fuzzing.py --seconds 600 --start 1000

What fails is printed, made as small as it can be.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import itertools
import random
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import definition
import jax
import jax.numpy as jnp
import numpy as np
import torch
from definition import DTYPES, POOLS, Array
from jax.sharding import NamedSharding, PartitionSpec
from programs import PARAMETERS, ROWS, Program, Ref, Step, draw
from torch.autograd import forward_ad
from torch.nn import functional

import interop
import jaxclamp
from interop import native

Tree: TypeAlias = Any
Calls: TypeAlias = Mapping[str, Callable[..., Any]]

TOLERANCE = {"float32": 1e-4, "float64": 1e-6, "bfloat16": 0.06, "float16": 0.02}
"""Shares of the gradient at a tie differ by more, and errors of rounding are below.

Torch's hardsigmoid has the slope 1/6 in float32 for float64 too."""


# What a program calls, in each dialect.


def _values(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **kwargs: function(*args, **kwargs)[0]


JAXCLAMP: Calls = {
    **{name: op.function for name, op in jaxclamp.OPS.items()},
    **{name: _values(getattr(jaxclamp, name)) for name in ("max_with_indices", "min_with_indices")},
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
    with_indices = {name: _values(ops[name]) for name in ("max_with_indices", "min_with_indices")}
    return {**ops, **with_indices, **{name: _pool(ops[name], dims) for name, dims in POOLS.items()}, **_ARITHMETIC}


INTEROP: Calls = _of_torch(interop.TORCH_OPS)
NATIVE: Calls = _of_torch(native.NATIVE)
TORCH_NATIVE: Calls = _of_torch(
    {name: getattr(torch, name, None) or getattr(functional, name, None) for name in jaxclamp.OPS}
    | {"max_with_indices": torch.max, "min_with_indices": torch.Tensor.min}
)
"""Torch's own functions, for `interop.min_norm`."""

DIALECTS: Mapping[str, tuple[Calls, Callable[[], contextlib.AbstractContextManager[Any]]]] = {
    "jaxclamp": (JAXCLAMP, contextlib.nullcontext),
    "jaxclamp.min_norm": (JAX_NATIVE, contextlib.nullcontext),
    "interop": (INTEROP, contextlib.nullcontext),
    "interop.native": (NATIVE, contextlib.nullcontext),
    "interop.min_norm": (TORCH_NATIVE, interop.min_norm),
    "interop.min_norm of jax": (TORCH_NATIVE, functools.partial(interop.min_norm, backend="jax")),
}


# How a program is run.


def run_in_jax(program: Program, calls: Calls, inputs: Sequence[jax.Array]) -> jax.Array:
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


def called(step: Step, calls: Calls, operands: Sequence[Any], names: Mapping[str, str] = {}) -> Any:
    """The call, where ``names`` has the keywords that are spelled otherwise."""
    keywords = dict(zip(PARAMETERS.get(step.op, ())[step.by_keyword :], operands[step.by_keyword :], strict=False))
    keywords |= step.static
    return calls[step.op](*operands[: step.by_keyword], **{names.get(n, n): value for n, value in keywords.items()})


def _is_of_jaxclamp(step: Step) -> bool:
    """Whether JAX's own function has other names for the arguments, no such one, or another gradient by its formula."""
    return "ties" in step.static or (step.op in PARAMETERS and (step.by_keyword < 2 or "where" in step.static))


_NAMES_OF_TORCH = {"x": "input", "y": "other", "axis": "dim", "keepdims": "keepdim"}
_NAMES_OF_NUMPY = {"y": "x2"}


def run_in_torch(program: Program, calls: Calls, inputs: Sequence[torch.Tensor]) -> torch.Tensor:
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
_IN_BOTH = ("grad", "vjp", "jvp", "jacrev", "jacfwd", "hvp")
JAX_MODES = (*_IN_BOTH, "linearize and transpose")
TORCH_MODES = (*_IN_BOTH, "backward", "backward", "forward_ad")
DEVICES = ("shard_map", "sharded")
JAX_WRAPPERS: Mapping[str, Callable[..., Callable[..., Any]]] = {
    "jit": jax.jit,
    "checkpoint": jax.checkpoint,
    "checkpoint of all": functools.partial(jax.checkpoint, policy=jax.checkpoint_policies.everything_saveable),
    "cond": lambda f: lambda *xs: jax.lax.cond(xs[0].ravel()[0] > 0, f, f, *xs),
    "scan": lambda f: lambda *xs: jax.lax.scan(lambda _, x: (None, f(*x)), None, [x[None] for x in xs])[1][0],
    "vmap": lambda f: lambda *xs: jax.vmap(f, in_axes=-1, out_axes=-1)(*(x[..., None] for x in xs))[..., 0],
}


def drawn_form(program: Program, target: str, batched: Sequence[str]) -> Form:
    choices = random.Random(f"form {target} {program.seed}")
    modes = JAX_MODES if target == "jax" else TORCH_MODES
    is_flat = program.is_piecewise_linear
    if target == "torch":  # aten::hardsigmoid_backward has no forward mode
        is_flat = is_flat and all(step.op != "hardsigmoid" for step in program.steps)
    mode = choices.choice([mode for mode in modes if mode != "hvp" or is_flat])
    how = choices.choice(batched)
    if target == "jax":
        # At NaN, JAX's own relu and torch's own amax have another gradient.
        dialect = "jaxclamp" if program.is_special else choices.choice(("jaxclamp", "jaxclamp.min_norm"))
        wrapped = choices.choices([*JAX_WRAPPERS], k=choices.choice((0, 1, 1, 2)))
        if how == "shard_map":  # there JAX 0.10 cannot differentiate x * constant in a cond: pvary, it says
            wrapped = [name for name in wrapped if name != "cond"]
        if dialect == "jaxclamp.min_norm":
            wrapped.insert(choices.randint(0, len(wrapped)), "min_norm")
    else:
        (dialect,) = choices.choices([*DIALECTS][2:], (1, 0, 0, 1) if program.is_special else (1, 6, 6, 1))
        wrapped = ["checkpoint"] if mode == "backward" and choices.random() < 0.4 else []
        how = "loop" if mode in ("backward", "forward_ad") else how
    axes = tuple(choices.randrange(-1, points.ndim) for points in program.inputs)
    is_batched_first = how == "vmap" and mode in ("grad", "vjp", "jvp") and choices.random() < 0.5
    return Form(dialect, mode, tuple(wrapped), how, axes, is_batched_first)


def arguments_of(program: Program) -> list[Array]:
    """The active inputs, the others, the cotangent of the result, and the tangents of the active inputs."""
    pairs = [*zip(program.inputs, program.active, strict=True)]
    inputs = [x for x, active in pairs if active] + [x for x, active in pairs if not active]
    return [*inputs, *program.directions("result"), *program.directions("inputs")]


def differentiated(api: Any, program: Program, form: Form, whole: Callable[..., Any], batch: Callable[..., Any]) -> Any:
    """From the arguments to the value and the derivative, with the functions of `jax` or `torch.func`."""
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
            case "linearize and transpose":
                value, push = jax.linearize(restricted, *moving)
                return value, list(jax.linear_transpose(push, *moving)(cotangent))
            case "backward":
                leaves = [x.detach().requires_grad_() for x in moving]
                value = restricted(*leaves)
                return value.detach(), list(torch.autograd.grad(value, leaves, cotangent, materialize_grads=True))
            case "forward_ad":
                with forward_ad.dual_level():
                    value = restricted(*map(forward_ad.make_dual, moving, tangents))
                    unpacked = forward_ad.unpack_dual(value)
                    return unpacked.primal, unpacked.tangent
        return restricted(*moving), list(getattr(api, form.mode)(restricted, argnums=numbers)(*moving))

    return run if form.is_batched_first else batch(run)


def vmapped(vmap: Any, moveaxis: Any, form: Form, function: Callable[..., Any]) -> Callable[..., Any]:
    def run(*arguments: Any) -> Tree:
        axes = [axis % x.ndim for axis, x in zip(itertools.cycle(form.axes), arguments, strict=False)]
        return vmap(function, tuple(axes))(*(moveaxis(x, 0, axis) for x, axis in zip(arguments, axes, strict=True)))

    return run


def in_jax(program: Program, form: Form) -> Callable[..., Tree]:
    """The function of the arguments that answers for all rows."""
    whole = functools.partial(_called_with_all, functools.partial(run_in_jax, program, DIALECTS[form.dialect][0]))
    for name in form.wrapped:
        whole = jaxclamp.min_norm(whole) if name == "min_norm" else JAX_WRAPPERS[name](whole)

    def batch(function: Callable[..., Any]) -> Callable[..., Any]:
        match form.batched:
            case "map":
                return lambda *arguments: jax.lax.map(lambda row: function(*row), arguments)
            case "sharded":
                return jax.vmap(function)
            case "shard_map":
                rows = PartitionSpec("rows")
                return jax.shard_map(jax.vmap(function), mesh=mesh(), in_specs=rows, out_specs=rows)
        return vmapped(jax.vmap, jnp.moveaxis, form, function)

    return differentiated(jax, program, form, whole, batch)


def _called_with_all(function: Callable[[Sequence[Any]], Any], *inputs: Any) -> Any:
    return function(inputs)


def mesh() -> jax.sharding.Mesh:
    return jax.make_mesh((ROWS,), ("rows",), axis_types=(jax.sharding.AxisType.Auto,))


def in_torch(program: Program, form: Form) -> Callable[..., Tree]:
    """The same; a loop is of two rows alone."""
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

    return differentiated(torch.func, program, form, whole, batch)


# What programs answer.

Pair: TypeAlias = tuple[Program, Form]
Answers: TypeAlias = Callable[[Sequence[Pair]], list[Tree]]


def answers_of_jax(pairs: Sequence[Pair], compiled: bool = True) -> list[Tree]:
    """What all of them answer; compiled as one program, which takes less time than one for each."""
    functions = [in_jax(*pair) for pair in pairs]
    arguments: Any = [[a.astype(DTYPES[program.dtype]) for a in arguments_of(program)] for program, _ in pairs]

    def together(arguments: Any) -> list[Tree]:
        return [function(*given) for function, given in zip(functions, arguments, strict=True)]

    with jax.enable_x64(any(program.dtype == "float64" for program, _ in pairs)):
        if any(form.batched == "sharded" for _, form in pairs):
            arguments = jax.device_put(arguments, NamedSharding(mesh(), PartitionSpec("rows")))
        return (jax.jit(together) if compiled else together)(arguments)


def _tensors(program: Program, arrays: Iterable[Array]) -> list[torch.Tensor]:
    return [torch.tensor(a, dtype=getattr(torch, program.dtype)) for a in arrays]


def answers_of_torch(pairs: Sequence[Pair]) -> list[Tree]:
    return [in_torch(program, form)(*_tensors(program, arguments_of(program))) for program, form in pairs]


def answers_of_compiled_torch(pairs: Sequence[Pair]) -> list[Tree]:
    """Values and gradients of one graph of all programs, run for two rows."""
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
    return [jax.tree.map(lambda *leaves: torch.stack(leaves), *rows) for rows in zip(*found, strict=True)]


# The comparison with the definition.


def disagreement(program: Program, form: Form, answer: Tree) -> str:
    """How the values and the derivative differ from the definition; empty if they do not."""
    value, *leaves = map(_as_float64, jax.tree.leaves(answer))
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


def _as_float64(array: jax.Array | torch.Tensor) -> Array:
    return array.double().numpy() if isinstance(array, torch.Tensor) else np.asarray(array, np.float64)


def failures(pairs: Sequence[Pair], answers: Answers) -> list[str]:
    """A description of each program that disagrees with the definition or raises, made small."""
    try:
        found = answers(pairs)
    except Exception:  # of which one it was, each by itself will tell
        texts = [described(*pair, answers) for pair in pairs if failure(*pair, answers)]
        return texts or [f"raises together, not one by one:\n{traceback.format_exc()}"]
    wrong = [pair for pair, answer in zip(pairs, found, strict=True) if disagreement(*pair, answer)]
    return [described(*pair, answers) for pair in wrong]


def failure(program: Program, form: Form, answers: Answers) -> str:
    try:
        (answer,) = answers([(program, form)])
    except Exception as error:
        return f"raises {type(error).__name__}\n{traceback.format_exc(limit=-3, chain=False)}"
    return disagreement(program, form, answer)


def described(program: Program, form: Form, answers: Answers) -> str:
    """A failing program and its form, made as small as they can be."""
    reason = failure(program, form, answers)
    if not reason:
        return f"{program}\n{form}\nfails beside others, not by itself"
    smaller = _smaller(program, form)
    while (candidate := next(smaller, None)) is not None:
        with contextlib.suppress(definition.UndecidableError):
            found = failure(*candidate, answers) if candidate[0].expected[0].active else ""
            if found.split()[:2] == reason.split()[:2]:  # a wrong value, a wrong derivative, an exception of one kind
                (program, form), reason, smaller = candidate, found, _smaller(*candidate)
    return f"{program}\n{form}\n{reason}\n"


def _smaller(program: Program, form: Form) -> Iterator[Pair]:
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
    programs = [draw(seed, "jax") for seed in seeds]
    return [(program, drawn_form(program, "jax", batched or ("vmap", "vmap", "map"))) for program in programs]


def of_torch(seeds: Iterable[int]) -> list[Pair]:
    programs = [draw(seed, "torch") for seed in seeds]
    return [(program, drawn_form(program, "torch", ("loop", "vmap"))) for program in programs]


def compiled_of_torch(seeds: Iterable[int]) -> list[Pair]:
    plain: Any = {"mode": "backward", "wrapped": (), "batched": "loop", "is_batched_first": False}
    return [(program, dataclasses.replace(form, **plain)) for program, form in of_torch(seeds)]


def in_one_mode(pairs: Sequence[Pair]) -> list[list[Pair]]:
    """The programs with 64 bits, which need JAX's mode of that name, and the others."""
    groups = [[pair for pair in pairs if (pair[0].dtype == "float64") == wide] for wide in (False, True)]
    return [group for group in groups if group]


def rounds(start: int) -> dict[str, list[tuple[list[Pair], Answers]]]:
    """What is run from one seed on, for each target."""
    return {
        "jax": [
            (of_jax(range(start, start + 20)), answers_of_jax),
            (of_jax(range(start + 20, start + 26), *DEVICES), answers_of_jax),
            (of_jax(range(start + 26, start + 28)), functools.partial(answers_of_jax, compiled=False)),
        ],
        "torch": [
            (of_torch(range(start, start + 24)), answers_of_torch),
            (compiled_of_torch(range(start + 24, start + 28)), answers_of_compiled_torch),
        ],
    }


def main() -> None:
    """Draw programs until the time is over."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--start", type=int, default=1000, help="the first seed; those of the suite are below 1000")
    parser.add_argument("--target", choices=("jax", "torch"), action="append", help="one alone")
    options = parser.parse_args()
    jax.config.update("jax_num_cpu_devices", ROWS)
    end, found = time.monotonic() + options.seconds, 0
    for start in itertools.count(options.start, 28):
        for target in options.target or ("jax", "torch"):
            for pairs, answers in rounds(start)[target]:
                for text in itertools.chain(*(failures(group, answers) for group in in_one_mode(pairs))):
                    found += 1
                    print(text, flush=True)
        jax.clear_caches()
        print(f"seeds {start} to {start + 27}: {found} failures so far", flush=True)
        if time.monotonic() > end:
            break


if __name__ == "__main__":
    main()
