"""One computation in two forms: how far their values and gradients are apart, and what of that is due to ties."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import jax.numpy as jnp
import numpy as np

from interop.parity.frameworks import CONVERTIBLES, Array
from interop.parity.probe import WORST, Arrays, Probe, Probed, is_float, search
from interop.parity.recording import (
    Computation,
    FilePath,
    FrameworkName,
    Recording,
    check_function,
    computation_of,
    read,
    read_inputs,
    write,
)
from interop.parity.redrawn import CURE
from jaxclamp._tables import markdown_table, to_json

if TYPE_CHECKING:
    from rich.table import Table

Finding: TypeAlias = Literal["agrees", "ties", "port", "hidden tie", "rounding", "unsteady"]
Allowed: TypeAlias = Literal["ties", "rounding"]
"""The findings that may count as agreement."""
ROUNDING: tuple[Allowed, ...] = ("rounding",)
"""Those that do, unless others are named."""

_STYLES: dict[Finding, str] = {
    "agrees": "green",
    "ties": "yellow",
    "port": "red",
    "hidden tie": "yellow",
    "rounding": "yellow",
    "unsteady": "red",
}
SCHEMA = 1
"""The version of what `Comparison.to_json` writes, which docs/porting.md describes."""
_UNSEEN = "a tie that min_norm cannot see (as in a hand-written where)"
_HEADINGS = ("leaf", "absolute", "relative", "ulps", "apart", "under min_norm", "finding")


@dataclass(frozen=True)
class Largest:
    """The largest of some differences, and the index at which it is."""

    amount: float
    index: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.amount:.3g}" + (f" at {list(self.index)}" if self.amount and self.index else "")


@dataclass(frozen=True)
class Difference:
    r"""How far two arrays are apart: :math:`|a - b|`, :math:`|a - b| / \max(|a|, |b|)`, and the numbers of their dtype
    that lie between.

    NaN and NaN, and infinities of one sign, are not apart; NaN and a number are infinitely so. Complex numbers count as
    pairs, an axis more.
    """

    absolute: Largest
    relative: Largest
    ulps: Largest
    beyond: int
    """How many elements are further apart than the tolerance."""
    size: int
    numbers: tuple[float, ...]
    """The two numbers that are furthest apart; none in an empty array."""


@dataclass(frozen=True)
class Leaf:
    """One leaf of the results, or of the gradients, on both sides."""

    label: str
    mismatch: str
    """Why the sides cannot be compared, or cannot agree whatever their numbers are; empty as a rule."""
    native: Difference | None
    min_norm: Difference | None
    finding: Finding

    def passes(self, allow: Collection[Allowed] = ROUNDING) -> bool:
        """Whether the functions agree as they are, or all that is between them is allowed."""
        return self.finding in ("agrees", "hidden tie", *allow)

    def __str__(self) -> str:
        return f"{self.label} ({self.mismatch})" if self.mismatch else self.label


@dataclass(frozen=True)
class Comparison:
    r"""What `compare` found.

    Two numbers agree if :math:`|a - b| \le atol + rtol \max(|a|, |b|)`. Unless given, ``rtol`` is
    :math:`\epsilon^{2/3}` for the coarser of the two dtypes (2e-5 in float32; 0 for integers), and ``atol`` is ``rtol``
    times the largest number in the leaf, as sums round. Gradients that cancel to 0, as that of a bias before a
    normalization, leave the rounding of their terms: unless ``atol`` is given, a leaf that differs, under min_norm too,
    with no number on either side above ``rtol`` times the largest in all gradients, is no bug but ``rounding``. For
    other tolerances: ``dataclasses.replace(comparison, rtol=..., atol=...)``.

    Raises:
      TypeError: a tolerance is no number.
      ValueError: the sides were not given the same arrays, or a tolerance is negative.
    """

    first: Recording
    second: Recording
    rtol: float | None = None
    atol: float | None = None
    probed: Probed | None = None
    """What came of the probe, if one was asked for; ``probed.case`` has the inputs at which they differ."""

    def __post_init__(self) -> None:
        _check_tolerances(self.rtol, self.atol)
        inputs = self.first.inputs.keys() | self.second.inputs.keys()
        differing = sorted(i for i in inputs if self.first.inputs.get(i) != self.second.inputs.get(i))
        if differing:
            raise ValueError(
                f"compare: {self.first} and {self.second} were given different arrays as {_listed(differing)}; "
                "record both sides from the same arrays, of the same dtypes."
            )

    @functools.cached_property
    def leaves(self) -> tuple[Leaf, ...]:
        """The leaves of the values, then those of the gradients."""
        return tuple(map(self._leaf, dict.fromkeys([*self.first.native, *self.second.native])))

    def _leaf(self, label: str) -> Leaf:
        pair = (self.first, self.second)
        for this, other in (pair, pair[::-1]):
            if label not in other.native:
                return Leaf(label, f"only {this} has it", None, None, "port")
        a, b = (side.native[label] for side in pair)
        if a.shape != b.shape:
            return Leaf(label, f"shape {a.shape} against {b.shape}", None, None, "port")
        mismatch = "" if _same_kind(a.dtype, b.dtype) else f"dtype {a.dtype} against {b.dtype}"
        minimal = tuple(side.min_norm[label] for side in pair)
        native, min_norm = self._difference(a, b), self._difference(*minimal)
        findings: dict[tuple[bool, bool], Finding] = {
            (True, True): "agrees",
            (False, True): "ties",
            (False, False): "port",
            (True, False): "hidden tie",
        }
        finding = "port" if mismatch else findings[native.beyond == 0, min_norm.beyond == 0]
        if finding != "agrees" and not all(self._answers_twice(side, label) for side in pair):
            finding = "unsteady"  # where both draw the same numbers, they agree
        if _is_gradient(label) and not mismatch and min_norm.beyond and self._is_rounding(a, b, *minimal):
            finding = "rounding"
        return Leaf(label, mismatch, native, min_norm, finding)

    def _is_rounding(self, *gradients: Array) -> bool:
        """Whether all numbers in a leaf of the gradients are so small beside others that they may be rounding alone."""
        bound = self._rtol(gradients[0].dtype) * self._gradient_scale
        return self.atol is None and all(bool((abs(g.astype(np.float64)) <= bound).all()) for g in gradients)

    def _rtol(self, dtype: np.dtype[Any]) -> float:
        if self.rtol is not None:
            return self.rtol
        return float(jnp.finfo(dtype).eps) ** (2 / 3) if jnp.issubdtype(dtype, jnp.floating) else 0.0

    @functools.cached_property
    def _gradient_scale(self) -> float:
        """The largest number in the gradients."""
        answers = [*self.first.native.items(), *self.second.native.items()]
        return max((_largest_finite(array) for label, array in answers if _is_gradient(label)), default=0.0)

    def _difference(self, a: Array, b: Array) -> Difference:
        dtype = _common(a.dtype, b.dtype)
        if np.iscomplexobj(a) or np.iscomplexobj(b):
            a, b = (np.stack([array.real, array.imag], axis=-1) for array in (a, b))
        is_float = jnp.issubdtype(dtype, jnp.floating)
        rtol = self._rtol(dtype)
        with np.errstate(all="ignore"):
            x, y = a.astype(np.float64), b.astype(np.float64)
            scale = np.fmax(abs(x), abs(y))
            ulps = _ulps(a.astype(dtype), b.astype(dtype))
            absolute = abs(x - y) if is_float else ulps  # integers may be wider than float64 is precise
            same = (a == b) | (np.isnan(x) & np.isnan(y))
            one_nan = np.isnan(x) ^ np.isnan(y)
            absolute, relative, ulps = (
                np.where(same, 0.0, np.where(one_nan | np.isnan(d), np.inf, d))  # NaN is an infinity by another
                for d in (absolute, absolute / scale, ulps)
            )
            atol = rtol * _largest_finite(scale) if self.atol is None else self.atol
            beyond = np.isinf(absolute) | (absolute > atol + rtol * scale)
        largest = _largest(absolute)
        apart = tuple(side[largest.index].item() for side in (a, b)) if absolute.size else ()
        return Difference(largest, _largest(relative), _largest(ulps), int(beyond.sum()), beyond.size, apart)

    @property
    def agree(self) -> bool:
        """Whether the functions agree as they are, under the conventions of their frameworks."""
        return not self.disagreeing()

    def disagreeing(self, allow: Collection[Allowed] = ROUNDING) -> list[Leaf]:
        """The leaves in which the functions, as they are, do not agree.

        Args:
          allow: the findings that count as agreement, of ``"ties"`` and ``"rounding"``.

        Raises:
          ValueError: ``allow`` has another finding.
        """
        known = get_args(Allowed)
        if isinstance(allow, str) or not set(allow) <= set(known):
            raise ValueError(f"compare: allow={allow!r} is not a tuple of findings; those that can be are {known}.")
        return [leaf for leaf in self.leaves if not leaf.passes(allow)]

    @property
    def verdict(self) -> str:
        """What holds, in words, of which the first are the frameworks."""
        return f"{self.first.framework} against {self.second.framework}: {self._verdict}"

    @property
    def _verdict(self) -> str:
        found: dict[Finding, list[Leaf]] = {finding: [] for finding in _STYLES}
        for leaf in self.leaves:
            found[leaf.finding].append(leaf)
        if found["unsteady"]:
            labels = [leaf.label for leaf in found["unsteady"]]
            sides = (self.first, self.second)
            unsteady = [side for side in sides if not all(self._answers_twice(side, label) for label in labels)]
            return (
                f"not comparable: {_listed(labels)} is random: called again, with other random numbers, other values "
                f"came from {_listed(unsteady)}. {CURE}"
            )
        if found["port"]:
            by_value = any(leaf.mismatch or not _is_gradient(leaf.label) for leaf in found["port"])
            cause = "a bug of the port" if by_value else f"a bug of the port, or {_UNSEEN}"
            sentences = [
                "they disagree, and not by convention alone: under min_norm too they differ in "
                f"{_listed(found['port'])}. That is {cause}."
            ]
        elif found["ties"]:
            causes = "by convention alone, at ties or at NaN" if self._has_nan else "because of ties alone"
            sentences = [f"they disagree {causes}."]
        else:
            sentences = ["they agree where rounding lets them be compared." if found["rounding"] else "they agree."]
        if found["ties"]:
            sentences.append(f"The convention makes the difference in {_listed(found['ties'])}: min_norm removes it.")
        if found["hidden tie"]:
            sentences.append(f"Only under min_norm they differ in {_listed(found['hidden tie'])}. That is {_UNSEEN}.")
        if found["rounding"]:
            sentences.append(
                f"Beside the largest gradient, both are 0 to within rounding in {_listed(found['rounding'])}, "
                "and differ."
            )
        if self.probed:
            sentences.append(str(self.probed))
        return " ".join(sentences)

    @property
    def _has_nan(self) -> bool:
        """Whether there is a NaN in what the functions were given or answer, at which conventions may differ too."""
        answers = [*self.first.native.values(), *self.second.native.values()]
        return self.first.given_nan or any(bool((array != array).any()) for array in answers)

    def _answers_twice(self, side: Recording, label: str) -> bool:
        """Whether a value is the same under min_norm, with other random numbers: min_norm changes gradients alone."""
        return _is_gradient(label) or self._difference(side.native[label], side.min_norm[label]).beyond == 0

    def assert_agree(
        self, rtol: float | None = None, atol: float | None = None, allow: Collection[Allowed] = ROUNDING
    ) -> None:
        """Check that the functions agree as they are.

        Args:
          rtol, atol: the tolerance, by default that of the comparison.
          allow: the findings that count as agreement: ``("ties", "rounding")`` lets ties pass too, ``()`` nothing.

        Raises:
          AssertionError: they do not; the message names the leaves, and says what to do.
          TypeError: a tolerance is no number.
          ValueError: a tolerance is negative, or ``allow`` has another finding.
        """
        __tracebackhide__ = True  # pytest shows the line of the test
        checked = dataclasses.replace(
            self, rtol=self.rtol if rtol is None else rtol, atol=self.atol if atol is None else atol
        )
        if disagreeing := checked.disagreeing(allow):
            lines = [checked._title, checked.verdict, *map(_in_words, disagreeing), *_cures(disagreeing)]
            raise AssertionError("\n".join(lines))

    def __str__(self) -> str:
        return "\n".join([self._title, self.verdict, *map(_in_words, self.disagreeing())])

    def __rich__(self) -> Table:
        from rich.table import Table  # only who prints the table needs rich
        from rich.text import Text

        table = Table(title=self._title, caption=Text(self.verdict), caption_justify="left")
        for heading in _HEADINGS:
            table.add_column(heading, overflow="fold")
        for leaf in self.leaves:
            table.add_row(*map(Text, _cells(leaf)), style=_STYLES[leaf.finding])
        return table

    def to_markdown(self) -> str:
        """The verdict and a table."""
        table = markdown_table(_HEADINGS, map(_cells, self.leaves))
        return f"**{self._title}**\n\n{self.verdict}\n\n{table}\n"

    def to_json(self) -> str:
        """All that is known of each leaf, but for the arrays; infinities and NaN are strings.

        The page on checking a port describes the fields. A change of their meaning changes the number ``schema``.
        """
        first, second = (
            {"name": side.name, "framework": side.framework, "version": side.version}
            for side in (self.first, self.second)
        )
        content = {
            "schema": SCHEMA,
            "first": first,
            "second": second,
            "agree": self.agree,
            "verdict": self.verdict,
            "rtol": self.rtol,
            "atol": self.atol,
            "probe": self.probed and self.probed.summary(),
            "leaves": [dataclasses.asdict(leaf) for leaf in self.leaves],
        }
        return to_json(content, indent=1) + "\n"

    def save(self, path: FilePath) -> None:
        """Write an npz file, the answers of both sides included."""
        write(path, [self.first, self.second], rtol=self.rtol, atol=self.atol)

    @classmethod
    def load(cls, path: FilePath) -> Comparison:
        """Read what `save` wrote.

        Raises:
          ValueError: the file holds something else.
        """
        recordings, settings = read(path)
        if len(recordings) != 2:
            raise ValueError(f"Comparison.load: {str(path)!r} holds one side; use Recording.load.")
        first, second = recordings
        return cls(first, second, **settings)

    @property
    def _title(self) -> str:
        return f"{self.first} against {self.second}"


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

    Each side is called in one framework. It is the one that ``frameworks`` names. Else it is the one that the side runs
    in: of most functions there is only one, as torch refuses JAX's arrays and JAX torch's. A side that runs in both, as
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
        differ most is shrunk, and compared. A difference between finite numbers that float64 removes is rounding, and
        no find. Where the functions raise is passed over. It needs the package hypothesis.
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
    _check_tolerances(rtol, atol)
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
    if probe and isinstance(first, Computation) and isinstance(second, Computation):
        return _probed(first, second, rtol, atol, probe)
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
            f"compare: case={str(path)!r} has arrays as {_listed(arrays)}, and the arguments have them as "
            f"{_listed(side.arrays)}; pass arguments of the form that the case was found with."
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


def _probed(
    first: Computation, second: Computation, rtol: float | None, atol: float | None, probe: Probe
) -> Comparison:
    """The comparison at the given inputs, or at drawn ones at which the functions differ more."""
    if not any(map(is_float, first.arrays.values())):
        raise ValueError("compare: probe draws floats, and there are none among the arguments; pass an array of them.")

    def at(arrays: Arrays, rtol: float | None = rtol, *, natively: bool = False) -> Comparison:
        sides = [dataclasses.replace(side, arrays=arrays).recorded(natively=natively) for side in (first, second)]
        return Comparison(sides[0], sides[1], rtol, atol)

    def in_full(arrays: Arrays) -> Comparison:
        """Under the convention only where the functions differ as they are."""
        comparison = at(arrays, natively=True)
        return comparison if comparison.agree else at(arrays)

    def is_rounding(comparison: Comparison, arrays: Arrays) -> bool:
        wide = {label: a.astype(np.float64) if is_float(a) else a for label, a in arrays.items()}
        differing = comparison.disagreeing(("ties", "rounding"))
        if not all(
            leaf.native and not leaf.mismatch and np.isfinite(leaf.native.absolute.amount) for leaf in differing
        ):
            return False
        coarsest = max(comparison._rtol(array.dtype) for array in arrays.values())
        return at(wide, coarsest, natively=True).agree

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
        return 1 if leaf.finding == "ties" else 2 if _is_gradient(leaf.label) else WORST

    return max(map(of, comparison.disagreeing()), default=0)


def _check_tolerances(rtol: Any, atol: Any) -> None:
    for name, number in (("rtol", rtol), ("atol", atol)):
        if number is None:
            continue
        if not isinstance(number, int | float | np.number):
            raise TypeError(f"compare: {name} is {number!r}, a {type(number).__name__}; pass a number.")
        if not number >= 0:
            raise ValueError(
                f"compare: {name} is {number!r}; pass a number from 0 on, or none, for what rounding explains."
            )


def _same_kind(first: np.dtype[Any], second: np.dtype[Any]) -> bool:
    """Equal, or integers of any width: JAX has 32 bits where torch has 64."""
    return first == second or all(jnp.issubdtype(dtype, np.integer) for dtype in (first, second))


def _common(first: np.dtype[Any], second: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype in whose steps both are compared: of two floats the coarser, and the parts of complex numbers."""
    floats = [jnp.finfo(dtype) for dtype in (first, second) if jnp.issubdtype(dtype, jnp.inexact)]
    return max(floats, key=lambda info: info.eps).dtype if floats else np.promote_types(first, second)


def _ulps(a: Array, b: Array) -> Array:
    """The steps from one number of a dtype to the next that lie between."""
    i, j = _ordered(a), _ordered(b)
    return np.where(a >= b, i - j, j - i).astype(np.float64)


def _ordered(array: Array) -> Array:
    """Integers in the order of the numbers, modulo 2**64; -0.0 is 0.0."""
    if not jnp.issubdtype(array.dtype, jnp.floating):
        return array.astype(np.uint64)
    bits = array.view(f"i{array.itemsize}")
    return np.where(bits < 0, np.iinfo(bits.dtype).min - bits, bits).astype(np.uint64)


def _is_gradient(label: str) -> bool:
    return label.startswith("gradient")


def _largest_finite(array: Array) -> float:
    return float(abs(array[np.isfinite(array)].astype(np.float64)).max(initial=0.0))


def _largest(differences: Array) -> Largest:
    if not differences.size:
        return Largest(0.0, ())
    index = np.unravel_index(differences.argmax(), differences.shape)
    return Largest(float(differences[index]), tuple(map(int, index)))


def _listed(names: Iterable[Any], most: int = 5) -> str:
    shown = [str(name) for name in names]
    return ", ".join(shown[:most]) + (f" and {len(shown) - most} more" if len(shown) > most else "")


def _cells(leaf: Leaf) -> list[str]:
    finding = leaf.finding + (f": {leaf.mismatch}" if leaf.mismatch else "")
    if leaf.native is None or leaf.min_norm is None:
        return [leaf.label, *[""] * 5, finding]
    native = leaf.native
    apart = f"{native.beyond} of {native.size}"
    return [
        leaf.label,
        *map(str, (native.absolute, native.relative, native.ulps, apart, leaf.min_norm.absolute)),
        finding,
    ]


def _in_words(leaf: Leaf) -> str:
    label, absolute, relative, ulps, apart, under_min_norm, finding = _cells(leaf)
    if not apart:
        return f"  {label}: {finding}"
    if leaf.native and leaf.native.absolute.amount:
        absolute += f" ({' against '.join(f'{number:.7g}' for number in leaf.native.numbers)})"
    differences = (
        f"{apart} apart, absolute {absolute}, relative {relative}, ulps {ulps}; under min_norm {under_min_norm}"
    )
    return f"  {label}: {finding}: {differences}"


def _cures(disagreeing: Collection[Leaf]) -> list[str]:
    """What to do about the findings."""
    findings = {leaf.finding for leaf in disagreeing}
    cures = []
    if "ties" in findings:
        cures.append("jaxclamp.ties and interop.ties name the lines with ties; the min_norm of both removes them.")
    if findings <= {"ties", "rounding"}:
        allow = ", ".join(repr(finding) for finding in get_args(Allowed))
        cures.append(f"To let that pass: assert_agree(allow=({allow})), on the command line --allow.")
    return cures
