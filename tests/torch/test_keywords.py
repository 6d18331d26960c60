"""Arguments by position and by keyword, in every order: the same call each time, and the next time too.

The calls are those of jaxclamp, of interop, of interop.native, and of torch under `interop.min_norm`.
"""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.nn import functional

import interop
import jaxclamp
from interop import native
from interop._bridge import ops
from tests.support.representatives import thorough

Tensor = torch.Tensor
Arguments: TypeAlias = Mapping[str, Any]
Spelling: TypeAlias = tuple[list[Any], dict[str, Any]]

X = torch.tensor([-3.0, -1.0, 0.0, 0.5, 2.0, 3.0])
SQUARE = torch.tensor([[1.0, 3.0, 2.0], [3.0, 3.0, 0.0], [1.0, 0.0, 0.0]])
IMAGE = torch.tensor([2.0, 2.0, 1.0, 0.0, 5.0, 5.0, 4.0, 1.0] * 8).reshape(1, 1, 8, 8)

CALLS: dict[str, Arguments] = {
    "clamp": {"input": X, "min": -1.0, "max": 2.0},
    "clip": {"input": X, "min": X[1], "max": 0 * X + 2},
    "clamp_min": {"input": X, "min": -1.0},
    "clamp_max": {"input": X, "max": 2 + 0 * X},
    "maximum": {"input": X, "other": X.flip(0)},
    "minimum": {"input": X, "other": X.flip(0)},
    "fmax": {"input": X, "other": X.flip(0)},
    "fmin": {"input": X, "other": X.flip(0)},
    "relu": {"input": X},
    "relu6": {"input": 3 * X},
    "hardtanh": {"input": X, "min_val": -3.0, "max_val": 2.0},
    "hard_tanh": {"input": X, "min_val": -3.0, "max_val": 2.0},
    "abs": {"input": X},
    "absolute": {"input": X},
    "leaky_relu": {"input": X, "negative_slope": 0.25},
    "prelu": {"input": SQUARE, "weight": torch.tensor([0.25, 0.5, 2.0])},
    "elu": {"input": X, "alpha": 2.0},
    "selu": {"input": X},
    "celu": {"input": X, "alpha": 2.0},
    "hardsigmoid": {"input": X},
    "hard_sigmoid": {"input": X},
    "hardswish": {"input": X},
    "hard_swish": {"input": X},
    "softshrink": {"input": X, "lambd": 2.0},
    "hardshrink": {"input": X, "lambd": 2.0},
    "threshold": {"input": X, "threshold": 0.5, "value": 2.0},
    "amax": {"input": SQUARE, "dim": 1, "keepdim": True},
    "amin": {"input": SQUARE, "dim": (0,), "keepdim": True},
    "norm": {"input": SQUARE, "p": 1, "dim": 1, "keepdim": True},
    "hypot": {"input": X, "other": X.flip(0)},
    "max_with_indices": {"input": SQUARE, "dim": 0, "keepdim": True},
    "min_with_indices": {"input": SQUARE, "dim": 1, "keepdim": True},
    "max_pool1d": {"input": IMAGE[0], "kernel_size": 3, "stride": 2, "padding": 1, "dilation": 2, "ceil_mode": True},
    "max_pool2d": {
        **{"input": IMAGE, "kernel_size": (3, 2), "stride": (1, 2), "padding": 1, "dilation": (2, 1)},
        "ceil_mode": True,
    },
    "max_pool3d": {
        **{"input": IMAGE[None], "kernel_size": (1, 3, 2), "stride": (1, 1, 2), "padding": (0, 1, 1)},
        **{"dilation": (1, 2, 1), "ceil_mode": True},
    },
}
"""One call of each op, in which no two arguments could be swapped unnoticed."""

every_call = pytest.mark.parametrize("name", CALLS)


def own(name: str) -> Callable[..., Any]:
    """Torch's own function."""
    name = interop.TORCH_OPS[name].__name__.removesuffix("_with_indices")
    found: Callable[..., Any] = getattr(functional, name, None) or getattr(torch, name)
    return found


_NAMES_OF_JAX = {"input": "x", "other": "y", "dim": "axis", "keepdim": "keepdims", "p": "ord"}


def of_jax(name: str, *args: Any, **kwargs: Any) -> Any:
    """The call of jaxclamp, under its names for the arguments."""
    given = [jnp.asarray(v.numpy()) if isinstance(v, Tensor) else v for v in args]
    named = {n: jnp.asarray(v.numpy()) if isinstance(v, Tensor) else v for n, v in kwargs.items()}
    result = getattr(jaxclamp, name)(*given, **{_NAMES_OF_JAX.get(n, n): v for n, v in named.items()})
    leaves = [torch.tensor(np.asarray(leaf)) for leaf in (result if isinstance(result, tuple) else (result,))]
    return (leaves[0], leaves[1].long()) if len(leaves) > 1 else leaves[0]


def under_mode(backend: Any, name: str, *args: Any, **kwargs: Any) -> Any:
    with interop.min_norm(backend=backend):
        return own(name)(*args, **kwargs)


HOMES: dict[str, Callable[[str], Callable[..., Any]]] = {
    "jaxclamp": lambda name: functools.partial(of_jax, name),
    "interop": interop.TORCH_OPS.__getitem__,
    "interop.native": native.NATIVE.__getitem__,
    "min_norm": lambda name: functools.partial(under_mode, "torch", name),
    "min_norm of jax": lambda name: functools.partial(under_mode, "jax", name),
}
of_torch = pytest.mark.parametrize("home", [interop.TORCH_OPS, native.NATIVE], ids=["interop", "native"])


def chosen(name: str) -> Iterator[Arguments]:
    """The arguments of the call, without some of those that have a default."""
    parameters = inspect.signature(interop.TORCH_OPS[name]).parameters
    optional = [n for n in CALLS[name] if parameters[n].default is not inspect.Parameter.empty]
    for count in range(len(optional) + 1) if len(optional) < 4 else (0, 1, len(optional)):
        for omitted in itertools.combinations(optional, count):
            given = {n: value for n, value in CALLS[name].items() if n not in omitted}
            if not (name in ("clamp", "clip") and len(given) == 1):  # which torch refuses
                yield given


def spelled(name: str, arguments: Arguments) -> Iterator[Spelling]:
    """As many arguments by position as wanted, and the others by keyword, in every order."""
    names = list(arguments)
    order = list(inspect.signature(interop.TORCH_OPS[name]).parameters)
    may_be_positional = [n for i, n in enumerate(names) if order[: i + 1] == names[: i + 1]]
    for count in range(len(may_be_positional) + 1):
        for keywords in itertools.permutations(names[count:]):
            yield [arguments[n] for n in names[:count]], {n: arguments[n] for n in keywords}


def reference(name: str, arguments: Arguments) -> Any:
    """Torch's own result for the arguments by position, defaults included."""
    parameters = inspect.signature(interop.TORCH_OPS[name]).parameters
    args = [arguments.get(n, parameters[n].default) for n in CALLS[name]]
    if name in ("amax", "amin") and args[1] is None:
        args[1] = ()  # torch's name for all axes
    return own(name)(*args)


def same(found: Any, expected: Any) -> bool:
    pairs = zip(*(r if isinstance(r, tuple) else (r,) for r in (found, expected)), strict=True)
    return all(f.dtype == e.dtype and torch.allclose(f, e, rtol=1e-6, atol=1e-7) for f, e in pairs)


def shown(args: Sequence[Any], kwargs: Arguments) -> str:
    return f"({', '.join([*map(repr, args), *(f'{name}={value!r}' for name, value in kwargs.items())])})"


def test_every_op_is_called() -> None:
    assert CALLS.keys() == interop.TORCH_OPS.keys()


@pytest.mark.parametrize("home", HOMES)
@pytest.mark.parametrize("name", [pytest.param(name, marks=thorough(name)) for name in CALLS])
def test_every_order_of_keywords(name: str, home: str) -> None:
    """The first call of a kind makes a plan, which the second follows."""
    op, wrong = HOMES[home](name), []
    for arguments in chosen(name):
        expected = reference(name, arguments)
        spellings = [*spelled(name, arguments)]
        if len(spellings) > 100:  # the orders of all six arguments of a pool are 1957: about every seventieth
            spellings = spellings[:: len(spellings) // 29]
        for args, kwargs in spellings:
            if home == "interop" and len(arguments) <= 3:  # make the next call the first
                ops._OPS[name]._plans.clear()
            for call in ("first", "second"):
                if not same(op(*args, **kwargs), expected):
                    wrong.append(f"{call} {name}{shown(args, kwargs)}")
    assert not wrong, "\n".join(wrong[:10])


@pytest.mark.parametrize("name", [pytest.param(name, marks=thorough(name)) for name in CALLS])
def test_gradients_and_counts_in_every_order(name: str) -> None:
    arguments = CALLS[name]
    x = arguments["input"].clone().requires_grad_()
    gradient = of_first(interop.TORCH_OPS[name](x, *[*arguments.values()][1:]), x)
    with interop.ties() as counted:
        interop.TORCH_OPS[name](*arguments.values())
    wrong = []
    for args, kwargs in itertools.islice(spelled(name, arguments), 12):
        given, named = in_place_of(arguments["input"], x, args, kwargs)
        for call in ("first", "second"):
            with interop.ties() as recounted:
                own(name)(*given, **named)
            found = of_first(under_mode("torch", name, *given, **named), x)
            tied = (recounted.report.tied, recounted.report.elements)
            if not same(found, gradient) or tied != (counted.report.tied, counted.report.elements):
                wrong.append(f"{call} {name}{shown(args, kwargs)}: {found}, ties {tied}")
    assert not wrong, "\n".join(wrong[:10])


def of_first(result: Any, x: Tensor) -> Tensor:
    """The gradient of the result, or of the values of it."""
    return torch.autograd.grad((result[0] if isinstance(result, tuple) else result).sum(), x)[0]


def in_place_of(old: Tensor, new: Tensor, args: Sequence[Any], kwargs: Arguments) -> Spelling:
    """The same arguments with another tensor for one of them."""
    return [new if v is old else v for v in args], {n: new if v is old else v for n, v in kwargs.items()}


IN_PLACE = {"interop": interop.IN_PLACE_OPS, "native": native.NATIVE}


@pytest.mark.parametrize("home", IN_PLACE)
@pytest.mark.parametrize("name", [name for name in CALLS if f"{name}_" in interop.IN_PLACE_OPS])
def test_every_order_of_keywords_in_place(name: str, home: str) -> None:
    wrong = []
    for arguments in chosen(name):
        expected = reference(name, arguments)
        for args, kwargs in spelled(name, arguments):
            x = arguments["input"].clone()
            given, named = in_place_of(arguments["input"], x, args, kwargs)
            if IN_PLACE[home][f"{name}_"](*given, **named) is not x or not same(x, expected):
                wrong.append(f"{name}_{shown(args, kwargs)}")
    assert not wrong, "\n".join(wrong[:10])


FURTHER = {"ties": "inclusive", "out": None, "inplace": False, "return_indices": False}


@of_torch
@every_call
def test_further_keywords_among_the_others(name: str, home: Any) -> None:
    """Wherever what is not torch's own, or asks for another form, stands among them."""
    op, arguments = home[name], CALLS[name]
    for further, value in FURTHER.items():
        if further not in inspect.signature(op).parameters:
            with pytest.raises(TypeError, match=f"'{further}'"):
                op(**arguments, **{further: value})
            continue
        for place in range(len(arguments) + 1):
            pairs = list(arguments.items())
            pairs.insert(place, (further, value))
            for _ in range(2):
                assert same(op(**dict(pairs)), reference(name, arguments)), pairs


ALIASES = {"input": ("x", "a", "x1"), "other": ("x2",), "dim": ("axis",), "keepdim": ("keepdims",)}


def renamed(arguments: Arguments) -> Iterator[dict[str, Any]]:
    """The arguments with other names for some of the parameters, in both orders."""
    choices = [(name, *ALIASES.get(name, ())) for name in arguments]
    for names in itertools.product(*choices):
        pairs = [*zip(names, arguments.values(), strict=True)]
        yield from (dict(pairs), dict(reversed(pairs)))


@of_torch
@every_call
def test_names_of_numpy(name: str, home: Any) -> None:
    """Which functions of torch take beside their own; those of torch.nn.functional, written in Python, do not."""
    function, arguments = own(name), CALLS[name]
    expected = reference(name, arguments)
    for given in renamed(arguments):
        for _ in range(2):
            assert same(home[name](**given), expected), list(given)
        if inspect.isbuiltin(function):
            assert same(under_mode("torch" if home is native.NATIVE else "jax", name, **given), expected), list(given)
            assert "input" in given or same(function(**given), expected), list(given)


@every_call
def test_what_does_not_fit(name: str) -> None:
    """Two values for one argument, one value for none, and no value: each an error, of interop one that says more."""
    arguments = CALLS[name]
    x, others = arguments["input"], {n: value for n, value in arguments.items() if n != "input"}
    for op, message in ((interop.TORCH_OPS[name], r": .*its arguments are \(input"), (native.NATIVE[name], "")):
        refused: list[Callable[[], object]] = [
            functools.partial(op, **others),
            functools.partial(op, x, **arguments),
            functools.partial(op, x, x=x, **others),
            functools.partial(op, x=x, **arguments),
            functools.partial(op, **arguments, another=1),
        ]
        for call in refused:
            with pytest.raises(TypeError, match=f"{op.__name__}.*{message}"):
                call()


def test_swapped_bounds() -> None:
    """How it was found: the second call took the arguments in another order than the first."""
    x = torch.tensor([-3.0, 0.5, 3.0])
    for _ in range(2):
        assert interop.clamp(input=x, min=-1.0, max=2.0).tolist() == [-1, 0.5, 2]
        assert interop.clamp(max=2.0, min=-1.0, input=x).tolist() == [-1, 0.5, 2]
        with interop.min_norm():
            assert torch.clamp(max=2.0, input=x, min=-1.0).tolist() == [-1, 0.5, 2]
