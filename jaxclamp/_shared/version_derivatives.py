"""What released versions answer at ties: the weights of the derivatives that changed from one to another."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import eq, ge, gt, le, lt
from typing import Any, Literal, NamedTuple, TypeAlias

Mask: TypeAlias = Callable[..., Any]
"""From the operands of an op to where something holds: comparisons alone, which tensors and arrays have alike."""
Side: TypeAlias = Literal["left", "right"]


@dataclass(frozen=True, eq=False)
class Weights:
    """The derivative of a selection op, which need be no subgradient.

    It is that of the formulas of a framework, so that NaN gets what it gets there.
    """

    of: tuple[tuple[Mask, ...], ...]
    """For each operand, where it gets the gradient, and behind that where it gets half of it."""


class Derivative(NamedTuple):
    """The derivative of an op from a version on, and where it is written."""

    since: str
    arrays: Weights
    numbers: Weights
    """The one where the operands behind the first are numbers."""
    source: str


def _unless(lost: Mask) -> Mask:
    return lambda x, y: ~lost(x, y)


def _or_beside_nan(wins: Mask) -> Mask:
    return lambda x, y: wins(x, y) | (y != y)


_LARGER_HALVES = Weights(((_unless(lt), eq), (_unless(gt), eq)))
_SMALLER_HALVES = Weights(((_unless(gt), eq), (_unless(lt), eq)))
_CLOSED = Weights(
    (
        (lambda x, low, high: (x >= low) & (x <= high),),
        (lambda x, low, high: (x < low) & (low < high),),  # at x < low = high nothing gets it
        (lambda x, low, high: (x > high) | (low > high),),
    )
)
_OPEN = Weights(((lambda x, low, high: (x > low) & (x < high),),))
_HALVES = Weights(
    (
        (
            lambda x, low, high: ~((x < low) | (x > high)),
            lambda x, low, high: ((x == low) | (x == high)) & (low < high),
        ),
        (
            lambda x, low, high: ((x < low) & (low <= high)) | ((x == low) & (low < high)),
            lambda x, low, high: x == low,
        ),
        (
            lambda x, low, high: ((x > high) & (low <= high)) | ((x == high) & (low < high)) | (low > high),
            lambda x, low, high: (x == high) & (low < high),
        ),
    )
)


def _fmax(wins: Mask) -> Weights:
    keeps = _or_beside_nan(wins)
    return Weights(((keeps,), (_unless(keeps),)))


def _fmax_halves(ties: Mask, wins: Mask) -> Weights:
    return Weights(((_or_beside_nan(ties), eq), (_unless(_or_beside_nan(wins)), eq)))


_YAML = "torchgen/packaged/autograd/derivatives.yaml of the wheel"
_CPP = "clamp_backward and clamp_backward_min_max in torch/csrc/autograd/FunctionsManual.cpp"


def _alike(since: str, weights: Weights, source: str) -> Derivative:
    return Derivative(since, weights, weights, source)


_OF_TORCH: Mapping[str, Sequence[Derivative]] = {
    "clamp": (
        _alike("2.11", _CLOSED, _CPP),
        Derivative("2.14", _HALVES, _OPEN, f"{_CPP}, as pytorch/pytorch#191142 made them; measured"),
    ),
    "clamp_min": (
        _alike("2.11", Weights(((ge,), (lt,))), _YAML),
        Derivative("2.14", _LARGER_HALVES, Weights(((gt,),)), _YAML),
    ),
    "clamp_max": (
        _alike("2.11", Weights(((le,), (gt,))), _YAML),
        Derivative("2.14", _SMALLER_HALVES, Weights(((lt,),)), _YAML),
    ),
    "maximum": (_alike("2.11", _LARGER_HALVES, _YAML),),
    "minimum": (_alike("2.11", _SMALLER_HALVES, _YAML),),
    "fmax": (
        _alike("2.11", _fmax(ge), _YAML),
        _alike("2.14", _LARGER_HALVES, _YAML),
        _alike("2.15", _fmax_halves(ge, gt), f"{_YAML}; pytorch/pytorch#193035"),
    ),
    "fmin": (
        _alike("2.11", _fmax(le), _YAML),
        _alike("2.14", _SMALLER_HALVES, _YAML),
        _alike("2.15", _fmax_halves(le, lt), f"{_YAML}; pytorch/pytorch#193035"),
    ),
}
"""By the op."""

_LAX = "jax/_src/lax/lax.py"
_OF_JAX: Mapping[str, Sequence[Derivative]] = {
    "clamp": (
        _alike(
            "0.10",
            Weights(
                (
                    (lambda x, low, high: (x > low) & (x < high),),
                    (lambda x, low, high: (x < low) & (low < high),),
                    (lambda x, low, high: x > high,),
                )
            ),
            f"{_LAX}, of clamp_p",
        ),
    ),
    "maximum": (_alike("0.10", Weights(((ge, eq), (le, eq))), f"{_LAX}, of max_p"),),
    "minimum": (_alike("0.10", Weights(((le, eq), (ge, eq))), f"{_LAX}, of min_p"),),
}
"""By the op that a primitive computes; what JAX writes with others, such as `jax.numpy.clip`, follows from these."""

_DERIVATIVES = {"torch": _OF_TORCH, "jax": _OF_JAX}
_SIDES: Mapping[str, Mapping[str, Side]] = {
    "torch": dict.fromkeys(("leaky_relu", "elu", "selu"), "left"),  # leaky_relu_backward and elu_backward of ATen
    "jax": {"abs": "right"},  # abs_p in the same file
}
"""Ops that answer alike in all versions, with the slope to one side of a kink, be it nearer to 0 or not."""
_RECORDED = {
    "torch": ("2.11.0", "2.12.0", "2.12.1", "2.13.0", "2.14.0", "2.14.1", "2.15.0"),
    "jax": ("0.10.0", "0.10.1", "0.10.2", "0.11.0", "0.11.1", "0.11.2", "0.12.0", "0.12.0.1"),
}


@dataclass(frozen=True)
class Version:
    """A framework as one of its versions is."""

    framework: str
    number: str

    def __str__(self) -> str:
        return f"{self.framework} {self.number}"

    @property
    def ops(self) -> Collection[str]:
        """The selection ops of which the derivative is known; of all others it is the same in all versions."""
        return _DERIVATIVES[self.framework]

    def differs(self, op: str, other: Version) -> bool:
        """Whether the op of that name has another derivative in another version."""
        return any(self.weights(op, numbers) is not other.weights(op, numbers) for numbers in (False, True))

    def side(self, op: str) -> Side | None:
        """Whose slope the op of that name has at a kink, if it is not the one nearest to 0."""
        return _SIDES[self.framework].get(op)

    def weights(self, op: str, numbers: bool) -> Weights:
        """The derivative that the op of that name has there, with bounds that are ``numbers`` or arrays."""
        found = _OF_VERSION[self][op]
        return found.numbers if numbers else found.arrays


def _release(number: str) -> tuple[int, ...]:
    return tuple(map(int, number.split(".")))


VERSIONS = {
    framework: {
        f"{framework} {text}": Version(framework, number)
        for number in numbers  # the newest last
        for text in (number, ".".join(number.split(".")[:2]))
    }
    for framework, numbers in _RECORDED.items()
}
"""The versions whose answers are recorded, by framework and by what they may be called."""

_OF_VERSION: Mapping[Version, Mapping[str, Derivative]] = {
    version: {
        op: [d for d in derivatives if _release(d.since) <= _release(version.number)][-1]
        for op, derivatives in _DERIVATIVES[framework].items()
    }
    for framework, versions in VERSIONS.items()
    for version in versions.values()
}
"""The derivative of each op, found once: it is asked for at each call."""


def version_of(caller: str, version: str, *frameworks: str) -> Version:
    """The version of one of the frameworks that is meant by such a text as ``"torch 2.13"``.

    >>> str(version_of("as_of", "torch 2.13", "torch"))
    'torch 2.13.0'
    """
    if not isinstance(version, str):
        raise TypeError(
            f"{caller}: version is {version!r}; name a framework and its version, one of {_choices(frameworks)}."
        )
    release, _, _ = version.partition("+")  # torch.__version__ may be 2.13.0+cpu
    for framework in frameworks:
        if release in VERSIONS[framework]:
            return VERSIONS[framework][release]
    raise ValueError(f"{caller}: there is no record of {version!r}; choose one of {_choices(frameworks)}.")


def _choices(frameworks: Iterable[str]) -> str:
    return ", ".join(repr(text) for framework in frameworks for text in VERSIONS[framework])
