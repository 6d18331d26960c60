"""The derivatives at ties in released versions of torch and JAX, as weights of the operands."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import eq, ge, gt, le, lt
from typing import Any, Literal, NamedTuple, TypeAlias

Condition: TypeAlias = Callable[..., Any]
"""Maps the operands of an op to where a condition holds; made of comparisons alone, for tensors and arrays alike."""
Side: TypeAlias = Literal["left", "right"]


@dataclass(frozen=True, eq=False)
class Weights:
    """The derivative of a selection op, which need be no subgradient.

    The conditions are the formulas of a framework, so that NaN gets what it gets there. Those of ``maximum(x, y)`` in
    torch are ``((~(x < y), x == y), (~(x > y), x == y))``: x gets the gradient where it is not smaller, half of it at a
    tie. So at (3, 3) both get a half, and at (NaN, 3) both get all.
    """

    of: tuple[tuple[Condition, ...], ...]
    """For each operand, where it gets the gradient, and behind that where it gets half of it."""


class Derivative(NamedTuple):
    """The derivative of an op from a version on."""

    since: str
    arrays: Weights
    numbers: Weights | None = None
    """Another derivative, where the operands behind the first are numbers."""


def _unless(lost: Condition) -> Condition:
    """Return where ``lost`` does not hold, NaN included."""
    return lambda x, y: ~lost(x, y)


def _or_beside_nan(wins: Condition) -> Condition:
    """Return where ``wins`` holds, or the second operand is NaN, which `fmax` and `fmin` skip."""
    return lambda x, y: wins(x, y) | (y != y)


_LARGER_HALVES = Weights(((_unless(lt), eq), (_unless(gt), eq)))
_SMALLER_HALVES = Weights(((_unless(gt), eq), (_unless(lt), eq)))
# Three derivatives of a clamp. At its bounds x gets all (_CLOSED), nothing (_OPEN) or a half, like the bound (_HALVES).
_CLOSED = Weights(
    (
        (lambda x, low, high: (x >= low) & (x <= high),),
        (lambda x, low, high: (x < low) & (low < high),),  # at x < low = high nothing gets it
        (lambda x, low, high: (x > high) | (low > high),),
    )
)
_OPEN = Weights(((lambda x, low, high: (x > low) & (x < high),),))
# At low = x = high x gets all, and with low > high the upper bound.
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


def _fmax(wins: Condition) -> Weights:
    """Return the weights of an `fmax` or `fmin` whose x gets all where it ``wins``, and y all elsewhere."""
    keeps = _or_beside_nan(wins)
    return Weights(((keeps,), (_unless(keeps),)))


def _fmax_halves(ties: Condition, wins: Condition) -> Weights:
    """Return the weights of an `fmax` or `fmin` whose x gets all where it ``wins``, and half where it ``ties``."""
    return Weights(((_or_beside_nan(ties), eq), (_unless(_or_beside_nan(wins)), eq)))


# By torchgen/packaged/autograd/derivatives.yaml of the wheel, and clamp by clamp_backward and clamp_backward_min_max in
# torch/csrc/autograd/FunctionsManual.cpp. Those of clamp in 2.14 are as pytorch/pytorch#191142 made them, and measured;
# those of fmax and fmin in 2.15 are of pytorch/pytorch#193035.
_OF_TORCH: Mapping[str, Sequence[Derivative]] = {
    "clamp": (Derivative("2.11", _CLOSED), Derivative("2.14", _HALVES, _OPEN)),
    "clamp_min": (Derivative("2.11", Weights(((ge,), (lt,)))), Derivative("2.14", _LARGER_HALVES, Weights(((gt,),)))),
    "clamp_max": (Derivative("2.11", Weights(((le,), (gt,)))), Derivative("2.14", _SMALLER_HALVES, Weights(((lt,),)))),
    "maximum": (Derivative("2.11", _LARGER_HALVES),),
    "minimum": (Derivative("2.11", _SMALLER_HALVES),),
    "fmax": (
        Derivative("2.11", _fmax(ge)),
        Derivative("2.14", _LARGER_HALVES),
        Derivative("2.15", _fmax_halves(ge, gt)),
    ),
    "fmin": (
        Derivative("2.11", _fmax(le)),
        Derivative("2.14", _SMALLER_HALVES),
        Derivative("2.15", _fmax_halves(le, lt)),
    ),
}
"""Maps an op to its derivatives in torch, the oldest first."""

# By clamp_p, max_p and min_p in jax/_src/lax/lax.py.
_OF_JAX: Mapping[str, Sequence[Derivative]] = {
    "clamp": (
        Derivative(
            "0.10",
            Weights(
                (
                    (lambda x, low, high: (x > low) & (x < high),),
                    (lambda x, low, high: (x < low) & (low < high),),
                    (lambda x, low, high: x > high,),
                )
            ),
        ),
    ),
    "maximum": (Derivative("0.10", Weights(((ge, eq), (le, eq)))),),
    "minimum": (Derivative("0.10", Weights(((le, eq), (ge, eq)))),),
}
"""Maps the op that a primitive computes to its derivatives in JAX.

Those of functions that JAX writes with several primitives, such as `jax.numpy.clip`, follow from these."""

_DERIVATIVES = {"torch": _OF_TORCH, "jax": _OF_JAX}
_SIDES: Mapping[str, Mapping[str, Side]] = {
    "torch": dict.fromkeys(("leaky_relu", "elu", "selu"), "left"),  # leaky_relu_backward and elu_backward of ATen
    "jax": {"abs": "right"},  # abs_p in the same file
}
"""Maps an op to the side of a kink whose slope it has, in all versions, be that nearer to 0 or not."""
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
        """The selection ops whose derivative is recorded; of all others it is the same in all versions."""
        return _DERIVATIVES[self.framework]

    def differs(self, op: str, reference: Version) -> bool:
        """Return whether the op of that name has another derivative in the version ``reference``."""
        return any(self.weights(op, numbers) is not reference.weights(op, numbers) for numbers in (False, True))

    def side(self, op: str) -> Side | None:
        """Return to which side of a kink the op of that name has its slope; None if it has the one nearest to 0."""
        return _SIDES[self.framework].get(op)

    def weights(self, op: str, numbers: bool) -> Weights:
        """Return the derivative of the op of that name in this version, with bounds that are ``numbers`` or arrays."""
        derivative = _OF_VERSION[self][op]
        return derivative.numbers if numbers and derivative.numbers else derivative.arrays


def _release(number: str) -> tuple[int, ...]:
    return tuple(map(int, number.split(".")))


def _minor(number: str) -> str:
    return ".".join(number.split(".")[:2])


VERSIONS = {
    framework: {
        f"{prefix}{text_of(number)}": Version(framework, number)
        for text_of in (str, _minor)
        for number in numbers  # the newest last
        for prefix in (f"{framework} ", "")
    }
    for framework, numbers in _RECORDED.items()
}
"""Maps a framework, and what a version of it may be called, to the recorded version; the newest last."""

_OF_VERSION: Mapping[Version, Mapping[str, Derivative]] = {
    version: {
        op: [d for d in derivatives if _release(d.since) <= _release(version.number)][-1]
        for op, derivatives in _DERIVATIVES[framework].items()
    }
    for framework, versions in VERSIONS.items()
    for version in versions.values()
}
"""Maps a version to the derivative of each op in it. It is read at each call, and so looked up once."""


def version_of(caller: str, version: str, *frameworks: str) -> Version:
    """Return the recorded version of one of the frameworks that a text such as ``"torch 2.13"`` or "2.13" names.

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
    recorded = (str(version) for framework in frameworks for version in VERSIONS[framework].values())
    return ", ".join(map(repr, dict.fromkeys(recorded)))
