"""The transformation `ties`: where in a function ties happen, how often, and how far they move its gradient."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import itertools
import json
import math
import os
import sysconfig
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal, Var, jaxpr_as_fun
from jax.extend.core import primitives as p

from jaxclamp import _rules, _windows
from jaxclamp._jaxprs import Descend, inlined, transformed, with_bodies
from jaxclamp._rewrite import recognized, replaced
from jaxclamp._rules import Ties, on_tie

if TYPE_CHECKING:
    from rich.table import Table

P = ParamSpec("P")
R = TypeVar("R")
Site: TypeAlias = tuple[str, int, str, bool, str]


def ties(fun: Callable[P, R], *, influence: bool = False) -> Callable[P, tuple[R, TieReport]]:
    r"""The same function, returning beside its result a report of the ties that happened: ``(result, report)``.

    Counted is whatever `min_norm` rewrites, the ops of jaxclamp, and `jax.nn.relu` and ``relu6``: per line of the
    source, the elements of the results, and how many of them were on a tie or a kink. A loop counts in every step, a
    branch when it is taken, a function under ``shard_map`` once per device; what ``checkpoint`` computes a second time
    does not count. A select that looks like a kink written by hand, ``where(x > 0, x, 0)``, is listed as a suspect, in
    this plain form only: of a comparison itself, not of ``~``, ``&`` or ``|`` of it, nor of arithmetic inside it;
    neither is ``jnp.select``, nor a product with a mask. Other functions with a derivative of their own are not
    looked into, and what `jax.random` compares inside counts too.

    Counting changes what XLA fuses, so that a compiled result may be rounded differently. Nothing is left of it in
    ``fun`` itself.

    Args:
      fun: a function of any arguments, as for `min_norm`. It may contain transformations, such as a whole training step
        under ``jit``; ``ties`` itself runs outside of them.
      influence: whether to compute how far another convention moves the gradient of ``fun``, with respect to the
        floating point numbers in its first positional argument. The result of ``fun`` has to be a scalar. The
        gradient of minimum norm, here that of `jax.nn.relu`, ``relu6`` and the elementwise ops of jaxclamp too, is
        compared with that under ``ties="inclusive"`` and with that of ``fun`` as it is; the larger distance counts.
        The reductions of jaxclamp stay what they are.

    Raises:
      TypeError: ``fun`` is not callable; or, when called, it is within another transformation, or there is nothing to
        differentiate with respect to.
      ValueError: ``fun`` writes to its arguments.

    >>> value, report = ties(lambda x: jnp.maximum(x, 0.0).sum(), influence=True)(jnp.array([-1.0, 0.0, 0.0, 3.0]))
    >>> report.elements, report.tied
    (4, 2)
    >>> round(report.influence.norm, 4), round(report.influence.relative, 4)
    (1.4142, 1.4142)
    """

    if not callable(fun):
        raise TypeError(f"ties: fun is {fun!r}; pass a function.")

    @functools.wraps(fun)
    def run(*args: P.args, **kwargs: P.kwargs) -> tuple[R, TieReport]:
        counting = _Counting()
        kept = _copied((args, kwargs)) if influence else None  # the run may donate them
        result = transformed(fun, counting.replace)(*args, **kwargs)
        if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(result)):
            raise TypeError(
                "ties: counting takes values; call it outside of jit, grad and vmap, with those inside fun."
            )
        jax.block_until_ready(result)
        jax.effects_barrier()
        return result, TieReport(counting.totals.lines(), _influence(fun, *kept) if kept else None)

    return run


class Line(NamedTuple):
    """What happened at one line of the source to one op, or to a select that looks like one, a suspect."""

    file: str
    number: int
    op: str
    suspect: bool
    module: str
    """The path of the torch.nn.Module, in torch code within one."""
    elements: int
    tied: int

    @property
    def share(self) -> float:
        return self.tied / self.elements if self.elements else 0.0

    @property
    def place(self) -> str:
        """``file:number``, relative to the working directory if the file is below it."""
        file = Path(self.file)
        return f"{file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file}:{self.number}"


@dataclass(frozen=True)
class Influence:
    """How far another convention moves the gradient of minimum norm, beside the norm of that gradient.

    The other convention is ``ties="inclusive"`` or that of the function as it is, whichever is farther.
    """

    norm: float
    gradient_norm: float

    @classmethod
    def of(cls, gradient: Callable[[Ties | None], np.ndarray[Any, Any]]) -> Influence:
        """What ``gradient`` says, a vector that depends on the convention; None stands for the function as it is."""
        min_norm_gradient = gradient("min_norm")
        distances = [np.linalg.norm(gradient(ties) - min_norm_gradient) for ties in ("inclusive", None)]
        return cls(float(np.max(distances)), float(np.linalg.norm(min_norm_gradient)))

    @property
    def relative(self) -> float:
        return self.norm / self.gradient_norm if self.gradient_norm else math.inf if self.norm else 0.0

    def __add__(self, other: Influence) -> Influence:
        """As of the two gradients stacked, each under the convention that moves it farther."""
        return Influence(math.hypot(self.norm, other.norm), math.hypot(self.gradient_norm, other.gradient_norm))


@dataclass(frozen=True)
class TieReport:
    """The lines at which there can be ties, and, if it was asked for, their influence on the gradient.

    Reports add up: ``sum(reports, TieReport())``.
    """

    lines: tuple[Line, ...] = ()
    influence: Influence | None = None

    @property
    def elements(self) -> int:
        """The elements of all results, those of suspects left out."""
        return sum(line.elements for line in self.lines if not line.suspect)

    @property
    def tied(self) -> int:
        """Those of them that were on a tie."""
        return sum(line.tied for line in self.lines if not line.suspect)

    def __add__(self, other: TieReport) -> TieReport:
        influences = [report.influence for report in (self, other) if report.influence is not None]
        totals = Totals()
        for line in (*self.lines, *other.lines):
            totals[line[:5]] += line[5:]
        return TieReport(totals.lines(), functools.reduce(Influence.__add__, influences) if influences else None)

    def assert_none(self) -> None:
        """Raise an AssertionError that names the lines with ties, if there are any; suspects are none."""
        found = [line for line in self.lines if line.tied and not line.suspect]
        if found:
            places = "\n".join(f"  {line.place}: {line.op}, {line.tied} of {line.elements}" for line in found)
            raise AssertionError(f"{self.tied} of {self.elements} elements are on a tie:\n{places}")

    def __str__(self) -> str:
        rows = [_HEADINGS, *self._rows()]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        table = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        return "\n".join((self._summary(), *(table if self.lines else ())))

    def __rich__(self) -> Table:
        from rich.table import Table

        table = Table(*_HEADINGS, title=self._summary())
        for row in self._rows():
            table.add_row(*row)
        return table

    def to_markdown(self) -> str:
        rows = [_HEADINGS, ("---",) * len(_HEADINGS), *self._rows()]
        return "\n".join((self._summary(), "", *(f"| {' | '.join(row)} |" for row in rows)))

    def to_json(self) -> str:
        """All of it; infinities and NaN, for which JSON has no number, are strings."""
        lines = [{**line._asdict(), "share": line.share} for line in self.lines]
        influence = self.influence and {
            name: number if math.isfinite(number) else str(number)
            for name, number in (*dataclasses.asdict(self.influence).items(), ("relative", self.influence.relative))
        }
        return json.dumps({"lines": lines, "influence": influence}, allow_nan=False)

    def _summary(self) -> str:
        summary = f"{self.tied} of {self.elements} elements on a tie"
        if self.influence is None:
            return summary
        norm, relative = self.influence.norm, self.influence.relative
        beside = "that of minimum norm is 0" if math.isinf(relative) else f"{relative:.2%} of its norm"
        return f"{summary}; another convention moves the gradient by {norm:.3g}, {beside}"

    def _rows(self) -> list[tuple[str, ...]]:
        return [
            (
                f"{line.place} {line.module}".rstrip(),
                f"{line.op} (suspect)" if line.suspect else line.op,
                *map(str, line[5:]),
                f"{line.share:.2%}",
            )
            for line in self.lines
        ]


_HEADINGS = ("line", "op", "elements", "on a tie", "share")


class Totals(defaultdict[Site, "np.ndarray[Any, Any]"]):
    """Elements, and elements on a tie, per site."""

    def __init__(self) -> None:
        super().__init__(lambda: np.zeros(2, int))

    def lines(self) -> tuple[Line, ...]:
        return tuple(Line(*site, *total.tolist()) for site, total in sorted(self.items()))


class _Counting:
    """One run: beside an equation that can tie, equations that call back with how often it did."""

    def __init__(self) -> None:
        self.totals = Totals()
        self._lock = threading.Lock()
        self._producers: dict[Any, JaxprEqn] = {}

    def replace(self, eqn: JaxprEqn, descend: Descend) -> list[JaxprEqn]:
        self._producers.update(dict.fromkeys(eqn.outvars, eqn))
        if eqn.params.get("differentiated"):  # what checkpoint computes for the second time
            return [eqn]
        if _is_of_derivative(eqn):
            return [eqn]
        found = recognized(eqn)
        if name := _own_name(eqn) or (found.name if found else ""):
            on_ties = functools.partial(on_tie, functools.partial(found.call, "balanced")) if found else _reduced(eqn)
            return [eqn, *self._count(on_ties, eqn, (*_place(eqn), name, False, ""))]
        if comparison := self._suspected(eqn):
            return [eqn, *self._count(jnp.equal, comparison, (*_place(eqn), "select", True, ""))]
        return descend(_located(eqn))

    def _count(self, on_ties: Callable[..., jax.Array], eqn: JaxprEqn, site: Site) -> list[JaxprEqn]:
        def record(elements: int, tied: np.ndarray[Any, Any]) -> None:
            with self._lock:
                self.totals[site] += (elements, int(tied))

        def count(*operands: jax.Array) -> None:
            found = on_ties(*operands)
            jax.debug.callback(functools.partial(record, found.size), jnp.sum(found))

        return inlined(count, eqn)

    def _suspected(self, eqn: JaxprEqn) -> JaxprEqn | None:
        """If ``eqn`` is a select by an ordering of numbers of which a branch is computed, that comparison."""
        if eqn.primitive is not p.select_n_p and eqn.params.get("name") != "_where":
            return None
        predicate, *branches = (atom for atom in eqn.invars if not isinstance(atom, Literal))
        comparison = self._producers.get(predicate)
        if comparison is None or comparison.primitive not in (p.gt_p, p.ge_p, p.lt_p, p.le_p) or _brought_by_jax(eqn):
            return None
        makers = [self._producers[branch] for branch in branches if branch in self._producers]
        # A maker that selects as well is the first half of a select that was differentiated.
        atoms = [atom for maker in makers if maker.params.get("name") != "_where" for atom in maker.invars]
        inputs = {*branches, *(atom for atom in atoms if isinstance(atom, Var))}
        compared: list[Any] = [atom for atom in comparison.invars if isinstance(atom, Var)]
        real = all(jnp.issubdtype(atom.aval.dtype, jnp.floating) for atom in compared)
        return comparison if real and not inputs.isdisjoint(compared) else None


_INSTALLED = tuple(path + os.sep for path in sysconfig.get_paths().values())
_CUSTOM_DERIVATIVES = inspect.getfile(jax.custom_jvp.defjvps)
_JAX, _ = _LIBRARIES = tuple(str(Path(file).parent) + os.sep for file in (jax.__file__, __file__))


def _place(eqn: JaxprEqn) -> tuple[str, int]:
    return innermost((frame.file_name, frame.line_num) for frame in _frames(eqn))


def innermost(lines: Iterable[tuple[str, int]], *libraries: str) -> tuple[str, int]:
    """The first line of the user's own code, or else of a package that is not one of ``libraries``, nor JAX."""
    others = [line for line in lines if not line[0].startswith((*_LIBRARIES, *libraries))]
    others.sort(key=lambda line: line[0].startswith(_INSTALLED))
    return others[0] if others else ("unknown", 0)


def _frames(eqn: JaxprEqn) -> list[Any]:
    traceback = eqn.source_info.traceback
    return list(traceback.frames) if traceback else []


def _own_name(eqn: JaxprEqn) -> str:
    """The name of the op of jaxclamp that ``eqn`` is, if it is one."""
    if eqn.primitive is not p.custom_jvp_call_p:
        return ""
    origin = eqn.params["call_jaxpr"].jaxpr.debug_info
    return origin.func_name if _rules.__file__ in origin.func_src_info else ""


def _is_of_derivative(eqn: JaxprEqn) -> bool:
    """Whether ``eqn`` is from the derivative of an op of jaxclamp, which was counted itself."""
    files = (frame.file_name for frame in _frames(eqn))
    first = next((file for file in files if not file.startswith(_JAX)), "")
    return eqn.primitive is not p.custom_jvp_call_p and first in (_rules.__file__, _windows.__file__)


def _brought_by_jax(eqn: JaxprEqn) -> bool:
    """Whether ``eqn`` is from a derivative that a function of JAX brings, such as that of `jax.nn.relu`."""
    files = (frame.file_name for frame in _frames(eqn))
    return _CUSTOM_DERIVATIVES in itertools.takewhile(lambda file: file.startswith(_JAX), files)


def _reduced(eqn: JaxprEqn) -> Callable[..., jax.Array]:
    """What says, for an op of jaxclamp that reduces, which of its results are tied."""
    body: ClosedJaxpr = eqn.params["call_jaxpr"]
    reduction = next(inner for inner in body.jaxpr.eqns if inner.primitive in (p.reduce_max_p, p.reduce_min_p))
    found = recognized(reduction)
    assert found is not None
    before = jaxpr_as_fun(body.replace(jaxpr=body.jaxpr.replace(outvars=reduction.invars)))

    def on_ties(*operands: jax.Array) -> jax.Array:
        return on_tie(functools.partial(found.call, "balanced"), *before(*operands))

    return on_ties


def _located(eqn: JaxprEqn) -> JaxprEqn:
    """``eqn``, its body in the place of the call as far as no line of the user's own is in it.

    So it is with functions of JAX that are inner jits: they are traced once for all calls, and know no caller.
    """

    def change(body: Any) -> Any:
        if isinstance(body, ClosedJaxpr):
            return body.replace(jaxpr=change(body.jaxpr))
        return body.replace(eqns=[inner if stays(inner) else moved(inner) for inner in body.eqns])

    def stays(inner: JaxprEqn) -> bool:
        return _is_of_derivative(inner) or not all(
            frame.file_name.startswith(_INSTALLED + _LIBRARIES) for frame in _frames(inner)
        )

    def moved(inner: JaxprEqn) -> JaxprEqn:
        source_info = inner.source_info.replace(traceback=eqn.source_info.traceback)
        return inner.replace(source_info=source_info)  # type: ignore[no-any-return]

    return with_bodies(eqn, change)


def _influence(fun: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Influence:
    leaves, structure = jax.tree.flatten((args, kwargs))
    active = [i for i, leaf in enumerate(jax.tree.leaves(args[:1])) if _is_floating(leaf)]
    if not active:
        raise TypeError(
            "ties: influence=True differentiates with respect to the first positional argument, in which there are no "
            "floating point numbers; pass there what the gradient is of, for example as jnp.asarray(..., float)."
        )

    def gradient(ties: Ties | None) -> np.ndarray[Any, Any]:
        under = fun if ties is None else transformed(fun, functools.partial(replaced, ties))
        given = _copied(leaves)  # as this run, too, may donate them

        def restricted(at: list[jax.Array]) -> jax.Array:
            moved = dict(zip(active, at, strict=True))
            args, kwargs = jax.tree.unflatten(structure, [moved.get(i, leaf) for i, leaf in enumerate(given)])
            value: jax.Array = under(*args, **kwargs)
            return value

        gradients = jax.grad(restricted)([jnp.asarray(given[i]) for i in active])
        return np.concatenate([np.asarray(g, np.float64).ravel() for g in gradients])

    return Influence.of(gradient)


def _is_floating(leaf: Any) -> bool:
    array = isinstance(leaf, jax.Array | np.ndarray | np.generic)
    return isinstance(leaf, float) or (array and jnp.issubdtype(leaf.dtype, jnp.floating))


def _copied(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: jnp.copy(leaf) if isinstance(leaf, jax.Array) else leaf, tree)
