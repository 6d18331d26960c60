"""`compare`: its arguments checked, each side called in one framework, other inputs drawn if a probe asks for them."""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Callable
from typing import Any, TypeAlias

import jax.numpy as jnp
import numpy as np

from interop.comparison.comparison import Comparison, listed
from interop.comparison.leaves import (
    Allowed,
    Difference,
    Finding,
    Largest,
    Leaf,
    check_tolerances,
    is_gradient,
    is_rounding_alone,
    largest_of,
    relative_tolerance,
)
from interop.comparison.probe import WORST, Arrays, Probe, is_float, search
from interop.comparison.recording import (
    Computation,
    FilePath,
    FrameworkName,
    Recording,
    check_function,
    computation_of,
    read_inputs,
)
from interop.frameworks.registry import CONVERTIBLES

__all__ = ["Allowed", "Comparison", "Difference", "Finding", "Largest", "Leaf", "compare"]


def compare(
    f: Callable[..., Any] | Recording,
    g: Callable[..., Any] | Recording,
    /,
    *args: Any,
    frameworks: tuple[FrameworkName, FrameworkName] | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    probe: Probe | int | None = None,
    case: FilePath | None = None,
    **kwargs: Any,
) -> Comparison:
    r"""How far two forms of one computation are apart, and which differences are due to ties.

    Both are called with the same arguments, natively and under the min-norm convention (`jaxclamp.min_norm` and
    `interop.min_norm`). A difference that vanishes under it was a matter of convention; one that stays is a bug.
    The gradient is that of :math:`\sum_i w_i \, value_i` over the floats in the result, with respect to every array of
    floats among the arguments. The weights lie between 0.5 and 1.5, are 1 in leaves of one number, and depend on the
    position alone: the plain sum would be constant for a softmax or a normalization. Real and imaginary parts count as
    two floats.

    Each side is called in one framework: in the one that ``frameworks`` names, else in the one that the side runs in.
    Most functions run in one only, as torch refuses JAX's arrays and JAX torch's. A side that runs in both, as
    operators and methods may, is called in the framework that the other side does not run in. If both sides run in
    both, ``frameworks`` has to name them. The verdict begins with the frameworks.

    Args:
      f, g: functions of JAX or of torch, or what `interop.record` made of one. A `torch.nn.Module` is the function of
        its parameters, by name, and of its inputs: ``functional_call(module, args[0], args[1:])``; one without
        parameters is the function of its inputs. Whole models, whose parameters have other names and layouts, are for
        `interop.compare_models`. Both are called several times, and have to answer the same each time. Random numbers
        are the same for both sides, if these draw them alike; where values are random and differ, the verdict says so.
      args, kwargs: pytrees. The arrays in them (of NumPy, JAX or torch) become arrays of the framework, of the same
        dtype; all else is passed as it is.
      frameworks: that of ``f`` and that of ``g``, such as ``("jax", "torch")``.
      rtol, atol: the tolerance, by default what rounding explains: `interop.Comparison` has the formula.
      probe: how many inputs to draw beside the given ones, or an `interop.Probe`. The first at which the functions
        differ most is simplified, and compared. A difference between finite numbers that float64 removes is rounding,
        and does not count. Inputs at which a function raises are skipped. It needs the package hypothesis.
      case: a file that ``comparison.probed.case.save`` wrote, whose arrays take the place of those given.

    Raises:
      TypeError: a function runs in neither framework, or both run in both; a tolerance is no number; or there are
        arguments though both sides are recorded.
      ValueError: the sides were recorded from different arrays, a module was not given its parameters, a tolerance is
        negative, ``frameworks`` does not name two, or the case has other arguments.
      ModuleNotFoundError: hypothesis is missing, for a probe.
      Exception: whatever a function itself raises.

    >>> import jax, torch
    >>> def ported(x):
    ...     return torch.nn.functional.hardtanh(x)
    >>> comparison = compare(jax.nn.hard_tanh, ported, np.float32([-1, 0, 2]))
    >>> comparison.leaves[1].native.absolute
    Largest(amount=0.84375, index=(0,))
    >>> print(comparison.verdict)  # doctest: +NORMALIZE_WHITESPACE
    jax against torch: they disagree because of ties alone. The convention makes the difference in gradient[0]: min_norm
    removes it.
    >>> comparison = compare(jax.nn.relu6, lambda x: torch.clamp(x, 0.0, 5.0), np.float32([1, 2]), probe=100)
    >>> print(comparison.probed)
    Found by draw 3 of seed 0, with [0][1] = 6 in place of 2.
    """
    check_tolerances(rtol, atol)
    probe = _checked_probe(probe, f, g)
    names = _names(frameworks)
    for parameter, side in zip("fg", (f, g), strict=True):
        if not isinstance(side, Recording):
            check_function(f"compare: {parameter}", side)
    if isinstance(f, Recording) and isinstance(g, Recording) and (args or kwargs or case is not None):
        raise TypeError("compare: both sides are recorded, and keep the answers alone; leave out arguments and case.")
    first, second = (
        _recorded_in(side, parameter, name)
        if isinstance(side, Recording)
        else computation_of(f"compare: {parameter}", side, args, kwargs, name)
        for parameter, side, name in zip("fg", (f, g), names, strict=True)
    )
    first, second = (_with_case(side, case) for side in _settled(first, second))
    if isinstance(first, Computation) and isinstance(second, Computation):
        return _probed(first, second, rtol, atol, probe) if probe else _compared(first, second, rtol, atol)
    recorded = [side if isinstance(side, Recording) else side.recorded() for side in (first, second)]
    return Comparison(recorded[0], recorded[1], rtol, atol)


def _names(frameworks: Any) -> tuple[FrameworkName | None, FrameworkName | None]:
    if frameworks is None:
        return None, None
    if (
        not isinstance(frameworks, tuple | list)
        or len(frameworks) != 2
        or any(n not in CONVERTIBLES for n in frameworks)
    ):
        raise ValueError(
            f"compare: frameworks={frameworks!r} does not name two; give that of f and that of g, such as "
            '("jax", "torch").'
        )
    first, second = frameworks
    return first, second


def _recorded_in(recording: Recording, parameter: str, name: FrameworkName | None) -> Recording:
    if name not in (None, recording.framework):
        raise ValueError(
            f"compare: {parameter} was recorded in {recording.framework}, and frameworks names {name} for it."
        )
    return recording


Side: TypeAlias = Computation | Recording


def _settled(first: Side, second: Side) -> tuple[Side, Side]:
    """The sides, each in one framework; one that runs in both gets the one that the other does not run in."""
    both = [side for side in (first, second) if len(_runs_in(side)) > 1]
    if len(both) == 2:
        raise TypeError(
            f"compare: f, {first.name}, and g, {second.name}, run in JAX and in torch, as operators and methods do; "
            'name the framework to call each in, such as frameworks=("jax", "torch").'
        )

    def settled(side: Side, other: Side) -> Side:
        if isinstance(side, Recording) or len(side.frameworks) == 1:
            return side
        return dataclasses.replace(side, frameworks=[own for own in side.frameworks if own.name not in _runs_in(other)])

    return settled(first, second), settled(second, first)


def _runs_in(side: Side) -> list[str]:
    return [side.framework] if isinstance(side, Recording) else [framework.name for framework in side.frameworks]


def _with_case(side: Side, path: FilePath | None) -> Side:
    if path is None or isinstance(side, Recording):
        return side
    arrays = read_inputs(path)
    if arrays.keys() != side.arrays.keys():
        raise ValueError(
            f"compare: case={str(path)!r} has arrays as {listed(arrays)}, and the arguments have them as "
            f"{listed(side.arrays)}; pass arguments of the form that the case was found with."
        )
    return dataclasses.replace(side, arrays=arrays)


def _checked_probe(probe: Any, *sides: Any) -> Probe | None:
    if probe is None:
        return None
    if not isinstance(probe, Probe | int):
        raise TypeError(f"compare: probe is {probe!r}, a {type(probe).__name__}; pass how many inputs to draw.")
    if any(isinstance(side, Recording) for side in sides):
        raise TypeError("compare: probe asks both sides at other inputs, and one is recorded; pass its function.")
    if importlib.util.find_spec("hypothesis") is None:
        raise ModuleNotFoundError(
            "compare: probe needs hypothesis: pip install 'jaxclamp[probe]', or in a checkout '.[probe]'",
            name="hypothesis",
        )
    return probe if isinstance(probe, Probe) else Probe(probe)


def _compared(first: Computation, second: Computation, rtol: float | None, atol: float | None) -> Comparison:
    """The comparison, in which numbers that float64 shows to be rounding alone are no bug."""
    comparison = Comparison(first.recorded(), second.recorded(), rtol, atol)
    suspects = [] if atol is not None else _suspects(comparison, first.arrays)
    if not suspects:
        return comparison
    try:
        sides = [dataclasses.replace(side, arrays=_wide(side.arrays)) for side in (first, second)]
        in_float64 = [side.recorded(natively=True).native for side in sides]
    except Exception:  # of a function with constants of the narrower dtype, as torch does not multiply the two
        return comparison
    noise = []
    for label in suspects:
        given = [side.native[label] for side in (comparison.first, comparison.second)]
        precise = [side[label] for side in in_float64]
        is_precise = all(array.dtype == np.float64 for array in precise)
        if is_precise and is_rounding_alone(largest_of(given), largest_of(precise), given[0].dtype):
            noise.append(label)
    return dataclasses.replace(comparison, noise=tuple(noise))


def _suspects(comparison: Comparison, arrays: Arrays) -> list[str]:
    r"""The leaves that may be rounding alone: rounding is seldom more than :math:`\sqrt\epsilon` of what was summed."""
    floats = [array for array in arrays.values() if is_float(array)]
    sizes = {True: comparison.gradient_scale, False: largest_of(floats) if floats else 0.0}
    found = []
    for leaf in comparison.leaves:
        if leaf.finding == "port" and not leaf.mismatch:
            sides = [side.native[leaf.label] for side in (comparison.first, comparison.second)]
            is_small = largest_of(sides) <= float(jnp.finfo(sides[0].dtype).eps) ** 0.5 * sizes[is_gradient(leaf.label)]
            if is_float(sides[0]) and is_small:
                found.append(leaf.label)
    return found


def _wide(arrays: Arrays) -> Arrays:
    return {label: array.astype(np.float64) if is_float(array) else array for label, array in arrays.items()}


def _probed(
    first: Computation, second: Computation, rtol: float | None, atol: float | None, probe: Probe
) -> Comparison:
    """The comparison at the given inputs, or at drawn ones at which the functions differ more."""
    if not any(map(is_float, first.arrays.values())):
        raise ValueError("compare: probe draws floats, and there are none among the arguments; pass an array of them.")

    def at(arrays: Arrays, rtol: float | None = rtol, *, natively: bool = False) -> Comparison:
        sides = [dataclasses.replace(side, arrays=arrays) for side in (first, second)]
        if not natively:
            return _compared(sides[0], sides[1], rtol, atol)
        recorded = [side.recorded(natively=True) for side in sides]
        return Comparison(recorded[0], recorded[1], rtol, atol)

    def in_full(arrays: Arrays) -> Comparison:
        """Under the convention only where the functions differ as they are."""
        comparison = at(arrays, natively=True)
        return comparison if comparison.agree else at(arrays)

    def is_rounding(comparison: Comparison, arrays: Arrays) -> bool:
        differing = comparison.disagreeing(("ties", "rounding"))
        if not all(
            leaf.native and not leaf.mismatch and np.isfinite(leaf.native.absolute.amount) for leaf in differing
        ):
            return False
        coarsest = max(relative_tolerance(array.dtype, comparison.rtol) for array in arrays.values())
        return at(_wide(arrays), coarsest, natively=True).agree

    def severity(arrays: Arrays) -> int | None:
        try:
            comparison = in_full(arrays)
            bad = _severity(comparison)
            return 0 if bad > 1 and is_rounding(comparison, arrays) else bad
        except Exception:  # of a function, at inputs that it was not given
            return None

    comparison = at(first.arrays)
    bad = _severity(comparison)
    if bad > 1:
        return comparison
    probed = search(first.arrays, {0.0, *first.bounds(), *second.bounds()}, probe, severity, bad + 1)
    return dataclasses.replace(at(probed.case.arrays) if probed.case else comparison, probed=probed)


def _severity(comparison: Comparison) -> int:
    """0 where the functions agree as they are, 1 where ties alone come between them, 2 in gradients, 3 in values."""

    def of(leaf: Leaf) -> int:
        return 1 if leaf.finding == "ties" else 2 if is_gradient(leaf.label) else WORST

    return max(map(of, comparison.disagreeing()), default=0)
