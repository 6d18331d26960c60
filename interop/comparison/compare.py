"""`compare`: two functions are called with the same arrays, each in its framework, and their answers compared.

A call ``compare(f, g, x)`` goes through these steps, in which the argument is ``arrays["[0]"]``:

1. `computation_of` makes a `Computation` of each function: the arrays by label, and the frameworks it runs in.
2. `_Pair.compared` lets each record what it answers, as it is and under min_norm.
3. `Comparison` holds both recordings, and finds for each leaf whether they agree.
4. With a probe, `_Pair.probed` does 2 and 3 for drawn arrays too, and keeps those at which most differs.
"""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax.numpy as jnp
import numpy as np

from interop.comparison.comparison import Comparison
from interop.comparison.leaves import (
    Finding,
    Leaf,
    check_tolerances,
    eps_of,
    is_gradient,
    is_rounding_alone,
    largest_of,
    may_be_rounding,
    relative_tolerance,
    wide,
)
from interop.comparison.probe import WORST, Arrays, Probe, is_drawn, search
from interop.comparison.recording import (
    Computation,
    FilePath,
    FrameworkName,
    Recording,
    check_function,
    computation_of,
    read_inputs,
)
from interop.frameworks.base import Array, is_float
from interop.frameworks.registry import CONVERTIBLES
from jaxclamp._shared.tables import listed

Side: TypeAlias = Computation | Recording


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
    r"""Measure how far two forms of one computation are apart, and say which differences are due to ties.

    Both are called with the same arguments, unmodified and under the min-norm convention (`jaxclamp.min_norm` and
    `interop.min_norm`). A difference that vanishes under it was a matter of convention; one that stays is a bug.
    The gradient is that of :math:`\sum_i w_i \, value_i` over the floats in the result, with respect to every array of
    floats or complex numbers among the arguments. The weights lie between 0.5 and 1.5, are 1 in leaves of one number,
    and depend on the position alone: the plain sum would be constant for a softmax or a normalization. Real and
    imaginary parts count as two floats, and the gradient with respect to a complex number is as JAX has it, the
    conjugate of torch's.

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
    >>> comparison.leaves[1].unmodified.absolute
    Largest(amount=0.84375, index=(0,))
    >>> print(comparison.verdict)  # doctest: +NORMALIZE_WHITESPACE
    jax against torch: they disagree because of ties alone. gradient[0] differs by convention alone: under min_norm both
    agree.
    >>> comparison = compare(jax.nn.relu6, lambda x: torch.clamp(x, 0.0, 5.0), np.float32([1, 2]), probe=100)
    >>> print(comparison.probed)
    Found by draw 3 of seed 0, with [0][1] = 6 in place of 2.
    """
    check_tolerances(rtol, atol)
    probe = _checked_probe(probe, f, g)
    names = _checked_frameworks(frameworks)
    # Before f is called, which may take long.
    for parameter, function in zip("fg", (f, g), strict=True):
        if not isinstance(function, Recording):
            check_function(f"compare: {parameter}", function)
    if isinstance(f, Recording) and isinstance(g, Recording) and (args or kwargs or case is not None):
        raise TypeError("compare: both sides are recorded, and keep the answers alone; leave out arguments and case.")
    sides: list[Side] = []
    for parameter, function, name in zip("fg", (f, g), names, strict=True):
        if not isinstance(function, Recording):
            sides.append(_at_case(computation_of(f"compare: {parameter}", function, args, kwargs, name), case))
        elif name in (None, function.framework):
            sides.append(function)
        else:
            raise ValueError(
                f"compare: {parameter} was recorded in {function.framework}, and frameworks names {name} for it."
            )
    first, second = _each_in_one_framework(*sides)
    if isinstance(first, Computation) and isinstance(second, Computation):
        pair = _Pair(first, second, rtol, atol)
        return pair.probed(probe) if probe else pair.compared()
    first, second = (side if isinstance(side, Recording) else side.recorded() for side in (first, second))
    return Comparison(first, second, rtol, atol)


def _checked_probe(probe: Any, *functions: Any) -> Probe | None:
    if probe is None:
        return None
    if not isinstance(probe, Probe | int):
        raise TypeError(f"compare: probe is {probe!r}, a {type(probe).__name__}; pass how many inputs to draw.")
    if any(isinstance(function, Recording) for function in functions):
        raise TypeError("compare: probe asks both sides at other inputs, and one is recorded; pass its function.")
    if importlib.util.find_spec("hypothesis") is None:
        raise ModuleNotFoundError(
            "compare: probe needs hypothesis: pip install 'jaxclamp[probe]', or in a checkout '.[probe]'",
            name="hypothesis",
        )
    return probe if isinstance(probe, Probe) else Probe(probe)


def _checked_frameworks(frameworks: Any) -> Sequence[FrameworkName | None]:
    if frameworks is None:
        return None, None
    is_pair = isinstance(frameworks, tuple | list) and len(frameworks) == 2
    # In a list, as a name of the caller's may be of a type that is not hashable.
    if not is_pair or any(name not in [*CONVERTIBLES] for name in frameworks):
        raise ValueError(
            f"compare: frameworks={frameworks!r} does not name two; give that of f and that of g, such as "
            '("jax", "torch").'
        )
    return tuple(frameworks)


def _at_case(computation: Computation, case: FilePath | None) -> Computation:
    """Put the arrays in the file ``case``, if there is one, in the place of those among the arguments."""
    if case is None:
        return computation
    arrays = read_inputs(case)
    if arrays.keys() != computation.arrays.keys():
        raise ValueError(
            f"compare: case={str(case)!r} has arrays as {listed(arrays)}, and the arguments have them as "
            f"{listed(computation.arrays)}; pass arguments of the form that the case was found with."
        )
    return dataclasses.replace(computation, arrays=arrays)


def _each_in_one_framework(first: Side, second: Side) -> tuple[Side, Side]:
    """Choose the framework of a side that runs in both: the one that the opposite side does not run in."""

    def runs_in(side: Side) -> list[str]:
        return [side.framework] if isinstance(side, Recording) else [framework.name for framework in side.frameworks]

    def chosen(side: Side, opposite: Side) -> Side:
        if isinstance(side, Recording) or len(side.frameworks) == 1:
            return side
        frameworks = [framework for framework in side.frameworks if framework.name not in runs_in(opposite)]
        return dataclasses.replace(side, frameworks=frameworks)

    if len(runs_in(first)) == len(runs_in(second)) == 2:
        raise TypeError(
            f"compare: f, {first.name}, and g, {second.name}, run in JAX and in torch, as operators and methods do; "
            'name the framework to call each in: frameworks=("jax", "torch"), or --frameworks jax torch.'
        )
    return chosen(first, second), chosen(second, first)


@dataclass(frozen=True)
class _Pair:
    """Two functions, bound to the same arrays, and the tolerance to compare them with."""

    first: Computation
    second: Computation
    rtol: float | None
    atol: float | None

    def at(self, arrays: Arrays, rtol: float | None = None) -> _Pair:
        """Bind both functions to other arrays, and set another tolerance, if one is named."""
        first, second = (dataclasses.replace(side, arrays=arrays) for side in (self.first, self.second))
        return _Pair(first, second, self.rtol if rtol is None else rtol, self.atol)

    def recorded(self, *, with_min_norm: bool = True) -> Comparison:
        """Call both functions, and compare what they answer."""
        first, second = (side.recorded(with_min_norm=with_min_norm) for side in (self.first, self.second))
        return Comparison(first, second, self.rtol, self.atol)

    def compared(self) -> Comparison:
        r"""Call both functions, and once more in float64 if a difference may be rounding alone.

        An example is the gradient of a bias before a normalization. It is 0 for any bias, but in float32 the terms that
        cancel leave 3e-9 on one side and -5e-9 on the other, a relative difference of 2. In float64 they leave 1e-17:
        what shrinks as :math:`\epsilon` does is rounding, no bug and no tie. A difference that stays is one of these,
        however small. Nor is it a bug if numbers that do not shrink, as the gradient of a gain before a normalization,
        are apart by what shrinks.
        """
        comparison = self.recorded()
        suspects = self._suspects(comparison) if self.atol is None else []
        if not suspects:
            return comparison
        try:
            precise = self.at(_in_float64(self.first.arrays)).recorded(with_min_norm=False)
        except Exception:  # of a function with constants of the narrower dtype, as torch does not multiply the two
            return comparison
        # Without those that the functions return in another form there, as by a branch on the dtype.
        in_float64 = {leaf.label: leaf for leaf in dataclasses.replace(precise, rtol=None).leaves if leaf.unmodified}
        agreeing = [leaf.label for leaf in comparison.leaves if leaf.finding == "agrees"]
        # A function may compute a part in float32 all the same. Then leaves that agree as given are apart in float64.
        is_precise = all(leaf.passes() for label, leaf in in_float64.items() if label in agreeing)
        explained = 0.0 if is_precise else relative_tolerance(np.dtype(np.float32), None) * precise.gradient_scale
        noise, lasting = [], []
        for leaf in suspects:
            fine = in_float64.get(leaf.label)
            if fine is None or any(array.dtype != np.float64 for array in _answers(precise, fine)):
                continue
            before, after = (_extent(*each, leaf.finding) for each in ((comparison, leaf), (precise, fine)))
            if is_rounding_alone(before, after, _answers(comparison, leaf)[0].dtype):
                noise.append(leaf.label)
            elif fine.finding == "port" and _extent(precise, fine, "port") > explained:
                lasting.append(leaf.label)
        return dataclasses.replace(comparison, noise=tuple(noise), lasting=tuple(lasting))

    def _suspects(self, comparison: Comparison) -> list[Leaf]:
        """List the leaves that may be rounding alone."""
        # What was summed are inputs for a value, and other gradients for a gradient.
        floats = [array for array in self.first.arrays.values() if is_float(array)]
        largest_input = largest_of(floats) if floats else 0.0
        suspects = []
        for leaf in comparison.leaves:
            if leaf.finding in ("port", "ties", "rounding") and not leaf.mismatch:
                first, _ = _answers(comparison, leaf)
                scale = comparison.gradient_scale if is_gradient(leaf.label) else largest_input
                is_small = may_be_rounding(_extent(comparison, leaf, leaf.finding), eps_of(first.dtype), scale)
                if is_float(first) and (is_small or leaf.finding == "rounding"):
                    suspects.append(leaf)
        return suspects

    def probed(self, probe: Probe) -> Comparison:
        """Compare the functions at the inputs as they are, or at drawn ones at which they differ more."""
        if not any(map(is_drawn, self.first.arrays.values())):
            raise ValueError(
                "compare: probe draws floats, and there are none among the arguments; pass an array of them."
            )
        comparison = self.compared()
        severity = _severity(comparison)
        if severity > 1:  # a bug shows already, and the inputs of the caller are simpler to look at than drawn ones
            return comparison
        bounds = {0.0}  # that of functions whose programs hold no number, such as jnp.abs
        for side in (self.first, self.second):
            bounds |= side.framework.bounds(side.function, side.arrays)
        # Ties that show already, severity 1, need no draw that shows ties.
        probed = search(self.first.arrays, bounds, probe, self._severity_at, severity + 1)
        if probed.case:
            comparison = self.at(probed.case.arrays).compared()
        return dataclasses.replace(comparison, probed=probed)

    def _severity_at(self, arrays: Arrays) -> int | None:
        """Return how much the functions differ at these arrays, rounding left out; None where one raises."""
        try:
            pair = self.at(arrays)
            comparison = pair.recorded(with_min_norm=False)
            if comparison.agree:  # as most draws do, which need not be called under min_norm
                return 0
            comparison = pair.compared()
            severity = _severity(comparison)
            return 0 if severity > 1 and pair._is_rounding(comparison) else severity
        except Exception:  # of a function, at inputs that it was not written for
            return None

    def _is_rounding(self, comparison: Comparison) -> bool:
        """Say whether all that differs are finite numbers that agree in float64, by the tolerance of their dtype."""
        differing = comparison.disagreeing(("ties", "rounding"))
        amounts = [leaf.unmodified.absolute.amount for leaf in differing if leaf.unmodified and not leaf.mismatch]
        if len(amounts) < len(differing) or not np.isfinite(amounts).all():
            return False  # an overflow of one side, which float64 removes too, is no rounding
        arrays = self.first.arrays
        # By the tolerance of float64 what cancels there would be a bug: 1 - tanh(x)**2 of 8 has lost six digits.
        rtol = max(relative_tolerance(array.dtype, self.rtol) for array in arrays.values())
        return self.at(_in_float64(arrays), rtol).recorded(with_min_norm=False).agree


def _answers(comparison: Comparison, leaf: Leaf) -> list[Array]:
    return [side.unmodified[leaf.label] for side in (comparison.first, comparison.second)]


def _extent(comparison: Comparison, leaf: Leaf, finding: Finding) -> float:
    """Return how large the difference is, or, for ties, which float64 may not have, how large the answers are."""
    if finding == "ties" or leaf.unmodified is None:
        return largest_of(_answers(comparison, leaf))
    return leaf.unmodified.absolute.amount  # where equal infinities are not apart


def _in_float64(arrays: Arrays) -> Arrays:
    return {
        label: wide(array) if jnp.issubdtype(array.dtype, jnp.inexact) else array for label, array in arrays.items()
    }


def _severity(comparison: Comparison) -> int:
    """Return 0 if the functions agree as they are, 1 if ties alone come between them, 2 in gradients, 3 in values."""

    def of(leaf: Leaf) -> int:
        return 1 if leaf.finding == "ties" else 2 if is_gradient(leaf.label) else WORST

    return max(map(of, comparison.disagreeing()), default=0)
