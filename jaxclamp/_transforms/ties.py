"""The transformation `ties`: where in a function ties happen, how often, and how far they move its gradient."""

from __future__ import annotations

import functools
import os
import re
import sysconfig
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import JaxprEqn, Literal, Var, jaxpr_as_fun
from jax.extend.core import primitives as p

from jaxclamp._jax_versions import with_parts
from jaxclamp._record import OPS
from jaxclamp._rules.conventions import Convention
from jaxclamp._rules.differentiate import DERIVATIVE_SCOPE, OP_SCOPE
from jaxclamp._rules.operands import check_function, is_floating
from jaxclamp._shared.tie_report import Influence, Site, TieReport, Totals
from jaxclamp._transforms.jaxprs import Descend, inlined, transformed, with_bodies
from jaxclamp._transforms.min_norm import replaced
from jaxclamp._transforms.recognition import name_of_jaxclamp_op, recognized
from jaxclamp._transforms.undecided import UNDECIDED

P = ParamSpec("P")
R = TypeVar("R")


def ties(fun: Callable[P, R], *, influence: bool = False, has_aux: bool = False) -> Callable[P, tuple[R, TieReport]]:
    r"""The same function, returning with its result a report of the ties that happened: ``(result, report)``.

    Counted is whatever `min_norm` rewrites, the ops of jaxclamp, and `jax.nn.relu` and ``relu6``: per line of the
    source and per module, the elements of the results, and how many of them were on a tie or a kink. A loop counts in
    every step, a branch when it is taken, a function under ``shard_map`` once per device; what ``checkpoint`` computes
    a second time does not count. A select that looks like a kink written by hand, ``where(x > 0, x, 0)``, is listed as
    a suspect, in this plain form only: of a comparison itself, not of ``~``, ``&`` or ``|`` of it, nor of arithmetic
    inside it; neither is ``jnp.select``, nor a product with a mask. Suspects too are ``floor``, ``ceil``, ``round``,
    ``rem``, ``atan2`` and the bits of a number, which ``jnp.signbit`` and ``copysign`` read, with the elements at which
    they jump; and, not looked into, ``reduce_precision``, ``approx_max_k``, calls of a ``custom_vjp``, callbacks,
    ``custom_linear_solve``, ``pallas_call``, ``run_state`` and ``ffi_call``. Other functions with a derivative of their
    own are not looked into either, and what `jax.random` compares inside counts too.

    The module is known by the scopes of `jax.named_scope`. Flax linen enters one for each module, ``Net/Block_0``, and
    the layers of ``equinox.nn`` one with the name of their class. Modules of Flax nnx, and one's own of Equinox, enter
    none: decorate their methods, ``@jax.named_scope("Block")``.

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
      has_aux: whether ``fun`` returns a pair, as for `jax.grad`: the scalar, and whatever else.

    Raises:
      TypeError: ``fun`` is not callable; or, when called, it is within another transformation, or there is nothing to
        differentiate with respect to, or no scalar.
      ValueError: ``fun`` writes to its arguments.

    >>> value, report = ties(lambda x: jnp.maximum(x, 0.0).sum(), influence=True)(jnp.array([-1.0, 0.0, 0.0, 3.0]))
    >>> report.elements, report.tied
    (4, 2)
    >>> round(report.influence.norm, 4), round(report.influence.relative, 4)
    (1.4142, 1.4142)
    """
    check_function("ties", fun)

    @functools.wraps(fun)
    def run(*args: P.args, **kwargs: P.kwargs) -> tuple[R, TieReport]:
        counting = _Counting()
        copies = _copied((args, kwargs)) if influence else None  # the run may donate the arguments
        result = transformed(fun, counting.replace)(*args, **kwargs)
        if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(result)):
            raise TypeError(
                "ties: counting takes values; call it outside of jit, grad and vmap, with those inside fun."
            )
        jax.block_until_ready(result)
        jax.effects_barrier()
        if influence:
            _refuse_unless_scalar(result, has_aux)
        return result, TieReport(counting.totals.lines(), _influence(fun, has_aux, *copies) if copies else None)

    return run


class _Counting:
    """The counts of one run. Behind each equation that can tie it puts others, which call back with how many did."""

    def __init__(self) -> None:
        self.totals = Totals()
        self._lock = threading.Lock()
        self._producers: dict[Any, JaxprEqn] = {}
        """Maps a variable to the equation that computes it."""
        self._counted: set[Any] = set()
        """The operands of calls that were counted: a select by one of them belongs to the derivative of that call."""

    def replace(self, eqn: JaxprEqn, descend: Descend) -> list[JaxprEqn]:
        """Return ``eqn``, and behind it the equations that count its ties, or those inside its bodies."""
        self._producers.update(dict.fromkeys(eqn.outvars, eqn))
        if eqn.params.get("differentiated"):  # what checkpoint computes for the second time
            return [eqn]
        if _is_of_derivative(eqn):  # of an op of jaxclamp, which was counted itself
            return [eqn]
        op = recognized(eqn)
        if name := name_of_jaxclamp_op(eqn) or (op.name if op else ""):
            if eqn.primitive in (p.custom_jvp_call_p, p.jit_p):
                self._counted.update(atom for atom in eqn.invars if isinstance(atom, Var))
            on_tie = op.on_tie if op else _on_tie_of_op(name, eqn)
            return [eqn, *self._count(on_tie, eqn, _site(eqn, name))]
        if comparison := self._suspected(eqn):
            return [eqn, *self._count(jnp.equal, comparison, _site(eqn, "select", suspect=True))]
        if (on_jump := SUSPECTS.get(eqn.primitive.name)) and not _is_of_integers(eqn):
            return [eqn, *self._count(on_jump, eqn, _site(eqn, eqn.primitive.name, suspect=True))]
        return descend(_located(eqn))

    def _count(self, on_tie: Callable[..., jax.Array], eqn: JaxprEqn, site: Site) -> list[JaxprEqn]:
        """Return equations that read the inputs of ``eqn``, and add to ``site`` how many elements are ``on_tie``."""

        def record(elements: int, tied: np.ndarray[Any, Any]) -> None:
            with self._lock:
                self.totals[site] += (elements, int(tied))

        def count(*operands: jax.Array) -> None:
            tied = on_tie(*operands)
            jax.debug.callback(functools.partial(record, tied.size), jnp.sum(tied))

        return inlined(count, eqn)

    def _suspected(self, eqn: JaxprEqn) -> JaxprEqn | None:
        """Return the comparison by which ``eqn`` selects, if it looks like a kink written by hand.

        Then it compares numbers, and a branch is one of these numbers or is computed of one. ``where(x > 0, x, 0)`` is
        such a select, and ``where(x > 0, -x, 0)``; ``where(x > 0, y, 0)`` is none, since x is in no branch.
        """
        if eqn.primitive is not p.select_n_p and eqn.params.get("name") != "_where":
            return None
        if not eqn.invars:  # what partial evaluation leaves of a select
            return None
        predicate, *branches = eqn.invars
        comparison = None if isinstance(predicate, Literal) else self._producers.get(predicate)
        if comparison is None or comparison.primitive not in (p.gt_p, p.ge_p, p.lt_p, p.le_p):
            return None
        branches = [branch for branch in branches if isinstance(branch, Var)]
        makers = [self._producers[branch] for branch in branches if branch in self._producers]
        # A maker that selects as well is the first half of a select that was differentiated.
        atoms = [atom for maker in makers if maker.params.get("name") != "_where" for atom in maker.invars]
        inputs = {*branches, *(atom for atom in atoms if isinstance(atom, Var))}
        compared: list[Any] = [atom for atom in comparison.invars if isinstance(atom, Var)]
        if self._counted.issuperset(compared):  # the derivative of that function, such as the one of jax.nn.relu
            return None
        compares_floats = all(is_floating(atom.aval) for atom in compared)
        return comparison if compares_floats and not inputs.isdisjoint(compared) else None


def _is_of_integers(eqn: JaxprEqn) -> bool:
    """Return whether ``eqn`` reads the bits of integers, as `jax.random` does."""
    operand: Any = eqn.invars[0].aval if eqn.invars else None
    return eqn.primitive is p.bitcast_convert_type_p and not is_floating(operand)


def _nowhere(*operands: jax.Array) -> jax.Array:
    """Return False for each element of the first operand: where a suspect jumps is not known."""
    return jnp.zeros(operands[0].shape if operands else (), bool)


SUSPECTS: dict[str, Callable[..., jax.Array]] = {
    "floor": lambda x: x == jnp.floor(x),
    "ceil": lambda x: x == jnp.floor(x),
    "round": lambda x: x - jnp.floor(x) == 0.5,
    "rem": lambda x, y: jnp.equal(lax.rem(x, y), 0) if is_floating(x) else _nowhere(x),
    "atan2": lambda y, x: (y == 0) & (x < 0),
    "bitcast_convert_type": lambda x: x == 0,  # as of jnp.signbit and jnp.copysign
    **dict.fromkeys((*UNDECIDED, "custom_linear_solve"), _nowhere),
}
"""Maps a primitive that jumps, or is not looked into, to the function that says where it jumps, if that is known."""


_INSTALLED = tuple(path + os.sep for path in sysconfig.get_paths().values())
_LIBRARIES = (str(Path(jax.__file__).parent) + os.sep, str(Path(__file__).parents[1]) + os.sep)


def place(eqn: JaxprEqn) -> tuple[str, int]:
    """Return the file and the line of ``eqn`` in the user's code."""
    return innermost((frame.file_name, frame.line_num) for frame in _frames(eqn))


def _site(eqn: JaxprEqn, op: str, *, suspect: bool = False) -> Site:
    """Return where the ties of ``eqn`` are counted: at its line of the source, for this op, in its module."""
    return (*place(eqn), op, suspect, _module(eqn))


def _module(eqn: JaxprEqn) -> str:
    """Return the scopes around ``eqn``: of ``transpose(jvp(Net))/Block_0/jaxclamp.relu`` those are Net/Block_0."""
    stack = re.sub(r"\b(?:jvp|transpose|vmap)\(|\)", "", str(eqn.source_info.name_stack))
    return "/".join(scope for scope in stack.split("/") if scope and not scope.startswith(OP_SCOPE))


def innermost(lines: Iterable[tuple[str, int]], *libraries: str) -> tuple[str, int]:
    """Return the first line of the user's code, or else of a package that is not one of ``libraries``, nor JAX."""
    candidates = [line for line in lines if not line[0].startswith((*_LIBRARIES, *libraries))]
    candidates.sort(key=lambda line: line[0].startswith(_INSTALLED))  # stable: the innermost line stays first
    return candidates[0] if candidates else ("unknown", 0)


def _frames(eqn: JaxprEqn) -> list[Any]:
    traceback = eqn.source_info.traceback
    return list(traceback.frames) if traceback else []


def _is_of_derivative(eqn: JaxprEqn) -> bool:
    """Return whether ``eqn`` is part of the derivative of an op of jaxclamp."""
    return eqn.primitive is not p.custom_jvp_call_p and DERIVATIVE_SCOPE in str(eqn.source_info.name_stack)


def _on_tie_of_op(name: str, eqn: JaxprEqn) -> Callable[..., jax.Array]:
    """Return the function of the inputs of ``eqn``, a call of that op of jaxclamp, that says where it is on a tie.

    The inputs of an elementwise op are the arguments of its function, and behind them bounds that are built in. A
    reduction has other parameters too, which are no inputs: so ties are counted at the reduction in its body.
    """
    op = OPS.get(name)  # `min_norm` makes pools of a ``reduce_window``, which no op is
    if op and op.family != "reduction":
        parameters = [p for p in op.signature.parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
        return lambda *operands: op.on_tie(*operands[: len(parameters)])
    body = eqn.params["call_jaxpr"]
    for inner in body.eqns:
        if inner.primitive in (p.reduce_max_p, p.reduce_min_p) and (reduction := recognized(inner)):
            before = jaxpr_as_fun(with_parts(body, outvars=inner.invars))
            return lambda *operands: reduction.on_tie(*before(*operands))
    # No reduction is in the body: it reduced a scalar, where there is nothing to choose.
    return lambda *operands: jnp.zeros(eqn.outvars[0].aval.shape, bool)  # type: ignore[attr-defined]


def _located(eqn: JaxprEqn) -> JaxprEqn:
    """Prefix the name stack of ``eqn`` to the equations of its body; give its traceback to those of libraries alone.

    JAX traces a library function that is an inner jit once, for all calls. So its equations do not name the caller.
    """
    outer = eqn.source_info

    def change(body: Any) -> Any:
        return with_parts(body, eqns=[moved(inner) for inner in body.eqns])

    def stays(inner: JaxprEqn) -> bool:
        return _is_of_derivative(inner) or not all(
            frame.file_name.startswith(_INSTALLED + _LIBRARIES) for frame in _frames(inner)
        )

    def moved(inner: JaxprEqn) -> JaxprEqn:
        within = inner.source_info.replace(name_stack=outer.name_stack + inner.source_info.name_stack)
        source_info = within if stays(inner) else within.replace(traceback=outer.traceback)
        return inner.replace(source_info=source_info)  # type: ignore[no-any-return]

    return with_bodies(eqn, change)


def _refuse_unless_scalar(result: Any, has_aux: bool) -> None:
    """Raise unless ``result`` is a scalar, or with ``has_aux`` a pair that begins with one."""
    if has_aux and not (isinstance(result, tuple) and len(result) == 2):
        raise TypeError(f"ties: has_aux=True, and fun returned {type(result).__name__}; return (scalar, auxiliary).")
    value = result[0] if has_aux else result
    if not jax.tree_util.all_leaves([value]) or jnp.shape(value):
        what = f"an array of shape {jnp.shape(value)}" if hasattr(value, "shape") else f"a {type(value).__name__}"
        raise TypeError(
            f"ties: influence=True differentiates a scalar, and fun returned {what}; return a scalar, or with "
            "has_aux=True a pair of it and whatever else."
        )


def _influence(fun: Callable[..., Any], has_aux: bool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Influence:
    """Compute how far another convention moves the gradient of ``fun`` by the floats in its first argument."""
    leaves, structure = jax.tree.flatten((args, kwargs))
    active = [i for i, leaf in enumerate(jax.tree.leaves(args[:1])) if _can_move(leaf)]
    if not active:
        raise TypeError(
            "ties: influence=True differentiates with respect to the first positional argument, in which there are no "
            "floating point numbers; pass there what the gradient is of, for example as jnp.asarray(..., float)."
        )

    def gradient(ties: Convention | None) -> np.ndarray[Any, Any]:
        under = fun if ties is None else transformed(fun, functools.partial(replaced, ties))
        leaves_of_run = _copied(leaves)  # as this run, too, may donate them

        def restricted(at: list[jax.Array]) -> jax.Array:
            moved = dict(zip(active, at, strict=True))
            args, kwargs = jax.tree.unflatten(structure, [moved.get(i, leaf) for i, leaf in enumerate(leaves_of_run)])
            value: jax.Array = under(*args, **kwargs)[0] if has_aux else under(*args, **kwargs)
            return value

        gradients = jax.grad(restricted)([jnp.asarray(leaves_of_run[i]) for i in active])
        return np.concatenate([np.asarray(g, np.float64).ravel() for g in gradients])

    return Influence.of(gradient)


def _can_move(leaf: Any) -> bool:
    """Return whether a leaf of the arguments is an array of floats, or a float."""
    return isinstance(leaf, float) or (isinstance(leaf, jax.Array | np.ndarray | np.generic) and is_floating(leaf))


def _copied(tree: Any) -> Any:
    """Return ``tree`` with its JAX arrays copied, so that donating one leaves the copy alive."""
    return jax.tree.map(lambda leaf: jnp.copy(leaf) if isinstance(leaf, jax.Array) else leaf, tree)
