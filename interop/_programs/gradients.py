"""Derivatives of whole torch programs: `directional_derivative`, `grad`, `along` and `subdifferential`.

A function runs on dual tensors, in a block in which each choice is decided by their tangents. Forward mode then gives
the one-sided derivative. Reverse mode gives the gradient of the piece that the function enters: for
``relu(x) - relu(-x)`` at 0 along the direction 1 the piece is ``x - 0``.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any, TypeAlias, TypeVar

import numpy as np
import torch
from torch.autograd import forward_ad
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

from interop._programs.choices import roots
from interop._programs.decided import BACKWARD, Decided, operands
from interop._programs.late_tangents import Tape, refuse_without_jvp, waits
from interop._programs.nan_gradients import Losses, certified, has_nan
from interop._programs.order import LateTangentError, Tangents, moves, moving_by
from interop._torch.private_api import (
    COMPILED,
    depth_of_transformations,
    flattened,
    is_compiled,
    is_forward_mode,
    is_transformed,
    is_without_numbers,
    keywords_of,
    outside_of_transformations,
    propagates_tangents,
    refuse_compiled,
    sharding_of,
    unflattened,
    version_of,
    whole_of,
    with_forward_mode,
    with_old_versions,
    without_forward_mode,
    without_transformations,
)
from interop._transforms.as_of import PINNED
from interop._transforms.ties import can_tie, line_of_user, name_of, tied_elements
from jaxclamp._rules.operands import check_function, positions_of
from jaxclamp._shared.subdifferential import Subdifferential, check_directions, explored
from jaxclamp._transforms.undecided import warn_once

R = TypeVar("R")
Tree: TypeAlias = Any


def directional_derivative(fun: Callable[..., R], inputs: Tree, directions: Tree) -> tuple[R, R]:
    r"""Return the value and the one-sided derivative :math:`\lim_{t \to 0+} (f(x + t v) - f(x)) / t`.

    Exact at kinks too, however the function is spelled, and not linear in v there. It holds for functions that are
    smooth but for choices, and continuous. The choices are comparisons, and so `torch.where`, masks, and an ``if`` on
    the outcome; maximum, minimum, clamp, abs, sign and the activations made of them; extrema along axes, sort, topk and
    medians, cumulative extrema, max pooling, ``scatter_reduce``; norms of order 1 or more, standard deviations and
    roots of sums of squares, as ``(x * x + y * y).sqrt()``; losses with a margin or an absolute value; all as
    functions, methods, in-place forms and modules.

    What is within other transformations of torch.func in ``fun`` is decided along v, too: ``vmap``, ``grad``, ``vjp``,
    ``jvp``, ``jacrev``, ``jacfwd``, ``hessian``, ``functional_call``.

    Taken as they are at x:

    - What jumps: ``floor``, ``ceil``, ``round``, ``trunc``, ``fix``, ``frac``, ``fmod``, ``remainder`` and ``%``,
      ``div`` with ``rounding_mode``, conversions to integers, ``frexp``, ``nextafter``, ``copysign``, ``signbit``,
      ``angle`` and ``atan2``, ``isclose``, ``equal``, ``isin``, ``bucketize``, ``searchsorted``, ``histc``,
      ``matrix_rank``; ``softplus`` at a threshold below 20; whether a tensor itself is zero (``if x``, ``any``,
      ``all``, ``nonzero``, ``argwhere``, ``count_nonzero``).
    - Choices in torch's kernels: quantiles and modes, ``rrelu`` in training, ``linalg.cond`` for 1 and infinity, norms
      and power-average pooling of an order below 1; the bounds ``max_norm`` in ``embedding``, and ``eps`` in
      ``cosine_similarity`` and ``gaussian_nll_loss``.
    - What torch does not see: numbers taken out with ``item()``, masks of what ``detach()`` or ``.data`` cut off, an
      ``autograd.Function``, as is what `wrap_for_torch` returns, TorchScript. An operator of `torch.library.custom_op`
      has the derivative 0 in `directional_derivative`, as in `torch.func.jvp`, and an error in `grad`.
    - What has no choices, and is not smooth: standard deviations of complex numbers at 0, equal singular values and
      eigenvalues, and branch cuts of complex functions.
    - `directional_derivative`, `grad` and `subdifferential` of this package within ``fun``.

    A `jaxclamp.UndecidedWarning` names the line, once, where a value that moves is where such a function jumps, or at
    equal elements of a quantile or mode, at equal singular values or eigenvalues, at a pixel of ``grid_sample``, or at
    the bound ``max_norm``. No warning comes for ``histc``, ``matrix_rank``, ``cond``, branch cuts, deviations of
    complex numbers, the other bounds and the pooling just named, and for what torch does not see.

    Torch has no forward mode for ``unique``, ``floor_divide`` and ``//``, ``histogram``, ``segment_reduce``,
    ``embedding_bag``, ``grid_sample``, ``multilabel_margin_loss``, ``ctc_loss``, ``fake_quantize_per_tensor_affine``
    and its kin: they raise NotImplementedError. From torch 2.15 on it has one for ``grid_sample``, which turns or jumps
    where a point is at a pixel or between two, and is taken as it is there.

    A choice between operands that are equal and move alike is settled by higher derivatives, which are not looked at:
    ``where(x * x > 0, x, -x)`` at 0 goes wrong. The branch that is entered may be NaN at the point, as of
    ``where(x == 0, 1, sin(x) / x)``. Then a ``where`` takes the other one, as it does in torch, if it is not NaN too.

    Args:
      fun: a function of the inputs, as for `torch.func.jvp`.
      inputs: floating-point tensors or trees of them, in a tuple; or a tensor, for a function of one.
      directions: v, of the same structure, shapes and dtypes.

    Returns:
      The value, that of ``fun``, and the derivative, of the structure of the value. ``fun`` runs twice, at first on
      copies: what it does to ``inputs``, to running averages and to torch's random numbers, it does once.

    Raises:
      TypeError: ``fun`` is not callable, or an input is not a floating-point tensor.
      ValueError: ``directions`` has another structure, shape or dtype than ``inputs``.
      RuntimeError: forward mode is at work already, or called in a compiled function.
      NotImplementedError: ``fun`` calls what torch cannot differentiate in forward mode, or writes to ``out=``.

    >>> def identity(x):
    ...     return torch.relu(x) - torch.relu(-x)
    >>> directional_derivative(identity, torch.tensor(0.0), torch.tensor(-2.0))
    (tensor(0.), tensor(-2.))

    Source: Shapiro, On concepts of directional differentiability (1990); Griewank and Walther, Evaluating Derivatives
    (2008), chapter 14.
    """
    name = "directional_derivative"
    check_function(name, fun)
    _refuse_here(name)
    if isinstance(inputs, torch.Tensor):
        inputs, directions = (inputs,), (directions,)
    elif not isinstance(inputs, tuple | list):
        raise TypeError(f"{name}: inputs is a {type(inputs).__name__}; pass a tensor, or a tuple of the arguments.")
    _check(name, inputs, "inputs", directions, "directions")
    with _rehearsal(tuple(inputs), tuple(directions)) as copies:
        _, derivative = _pushed_forward(name, fun, *copies)
    return fun(*inputs), derivative


def grad(
    fun: Callable[..., Any],
    argnums: int | tuple[int, ...] = 0,
    has_aux: bool = False,
    *,
    direction: Tree = None,
    generator: torch.Generator | None = None,
) -> Callable[..., Any]:
    r"""Return the gradient of a whole program: the true one where there is one, however the program is spelled.

    At a kink of the program it is the gradient of the piece that ``fun`` enters along a direction v: the limit of its
    gradients at :math:`x + t v` for :math:`t \to 0+`. For all v but a set of measure zero that is an element of the
    B-subdifferential, hence of the Clarke subdifferential. What is decided, and what is not, is said at
    `directional_derivative`. Of ``where(x > 0, sqrt(x), 0)`` at -1 it is 0: where no path to the result has an infinite
    slope, no gradient is NaN.

    The signature is that of `torch.func.grad`. The transformations of torch.func work on the result: `torch.func.vmap`,
    over directions too, and another `torch.func.grad`, which differentiates within the piece. The cost does not grow
    with the number of inputs.

    Args:
      fun, argnums, has_aux: as for `torch.func.grad`.
      direction: v, of the structure of the argument, or for several ``argnums`` a tuple of such. Without it, v is
        drawn from a normal distribution, always the same.
      generator: for other draws.

    Returns:
      A function of the arguments of ``fun``, which returns the gradient, or a pair of it and the auxiliary result, for
      which ``fun`` runs once more, as in `directional_derivative`.

    Raises:
      TypeError: ``fun`` is not callable; when called, an argument is not of floating-point tensors.
      ValueError: both ``direction`` and ``generator`` are given; when called, ``direction`` has another structure,
        shape or dtype than the argument.
      RuntimeError: when called, as `directional_derivative` or `torch.func.grad`.
      NotImplementedError: when called, as `directional_derivative`.

    >>> def identity(x):
    ...     return torch.relu(x) - torch.relu(-x)
    >>> torch.func.grad(identity)(torch.tensor(0.0)), grad(identity)(torch.tensor(0.0))
    (tensor(0.), tensor(1.))
    >>> [grad(torch.abs, direction=torch.tensor(v))(torch.tensor(0.0)).item() for v in (1.0, -1.0)]
    [1.0, -1.0]

    Source: Khan and Barton, Evaluating an element of the Clarke generalized Jacobian of a composite piecewise
    differentiable function (2013); Kakade and Lee, Provably correct automatic subdifferentiation (2018).
    """
    check_function("grad", fun)
    _refuse_both("grad", direction, generator)

    @functools.wraps(fun)
    def gradient(*args: Any, **kwargs: Any) -> Any:
        _refuse_here("grad")
        active = _active("grad", args, argnums)
        v = direction
        if v is None:
            v = _drawn(_leaves_of("grad", active, "the argument"), active, generator)
        if not has_aux:
            return _differentiated("grad", fun, argnums, has_aux, v, args, kwargs)[1]
        # The auxiliary result is to have no tangents: a second run makes it, of the arguments as they are.
        with _rehearsal(args, kwargs) as copies:
            _, of_arguments = _differentiated("grad", fun, argnums, has_aux, v, *copies)
        return of_arguments, fun(*args, **kwargs)[1]

    return gradient


@contextlib.contextmanager
def along(
    parameters: torch.nn.Module | torch.Tensor | Iterable[torch.Tensor],
    *,
    direction: torch.Tensor | Sequence[torch.Tensor] | None = None,
    generator: torch.Generator | None = None,
) -> Iterator[None]:
    """A block in which ``loss.backward()`` gives the gradient of the piece that the loss enters along a direction.

    For training loops and modules as they are: the parameters stay the same tensors, with their values, gradients and
    hooks. On the CPU they get tangents when a choice is first on a tie, so that a step without one costs little more.
    The backward pass may follow the block, and an optimizer may step in the block or behind it. What is decided, and
    what is not, is said at `directional_derivative`; choices in other threads are not. Checkpoints compute again
    without tangents: they are refused. One with ``use_reentrant=True`` whose inputs need no gradient has none in torch,
    and so none here. Compiled functions are refused, too, and so are `torch.func.jvp`, `torch.func.jacfwd` and
    `torch.func.hessian`, since torch has one level of forward mode outside of torch.func.

    The loss is computed once, with choices decided along the direction: it may differ from the usual one by rounding,
    and where a choice jumps, as that of an expert among equal ones, it is that of the piece that is entered.
    Where a branch that is not taken would make a gradient NaN, the loss gets its true gradients when the block ends, or
    in a backward pass in the block, if it is one number. It can be differentiated once, then.

    Args:
      parameters: a module, or tensors, such as parameters and inputs together.
      direction: a tensor, or one for each of those that require grad, in the order of ``parameters``, or of
        ``module.parameters()``. Without it, they are drawn from a normal distribution, always the same, and kept with
        the parameters for the next block.
      generator: for other draws, such as another direction in each step.

    Raises:
      TypeError: ``parameters`` is neither a module nor tensors, or one of them is not floating-point, was made under
        `torch.inference_mode`, or is cut into parts by FullyShardedDataParallel, ``fully_shard`` or tensor parallelism.
      ValueError: no parameter requires grad; ``direction`` has another number of tensors, or one has another shape,
        dtype or device; both ``direction`` and ``generator`` are given.
      RuntimeError: forward mode is at work already, in whichever thread, as in another such block; or called in a
        compiled function; in the block, a compiled function is called; at its end, the module has a parameter that
        was made or unfrozen in it.

    >>> layer, x = torch.nn.Linear(1, 1, bias=False), torch.ones(1, 1)
    >>> _ = torch.nn.init.zeros_(layer.weight)
    >>> with along(layer):
    ...     y = layer(x)
    ...     (torch.relu(y) - torch.relu(-y)).sum().backward()
    >>> layer.weight.grad
    tensor([[1.]])
    """
    refuse_compiled("along")
    _refuse_here("along")
    moving = _trained(parameters)
    _refuse_both("along", direction, generator)
    if direction is None:
        direction = _drawn_once(moving) if generator is None else _drawn(moving, moving, generator)
    else:
        direction = [direction] if isinstance(direction, torch.Tensor) else list(direction)
        _check("along", moving, "parameters that require grad", direction, "direction")
    losses = Losses(moving)
    directions = dict(zip(moving, direction, strict=True))
    tangents = Tangents(depth_of_transformations())
    with _alone("along"), forward_ad.dual_level(), moving_by(tangents):
        with _named_cure("along", _CURES), _Uncompiled(losses, tangents, directions) as block:
            yield
        losses.settle(block.complete)  # while there are tangents, and no longer watched by the block
    if isinstance(parameters, torch.nn.Module):
        named = parameters.named_parameters()
        if new := [name for name, parameter in named if parameter.requires_grad and parameter not in directions]:
            raise RuntimeError(
                f"along: {new[0]} was made or unfrozen in the block, and has the gradient of torch; call "
                "load_state_dict(assign=True), requires_grad_() and the like before the block."
            )


def subdifferential(
    fun: Callable[..., Any],
    argnums: int | tuple[int, ...] = 0,
    *,
    directions: int = 16,
    generator: torch.Generator | None = None,
) -> Callable[..., Subdifferential]:
    r"""Return the gradients of the pieces around a point, the least point of their hull, and what it certifies.

    Half of the directions are drawn from a normal distribution, the others are their opposites. Then the search goes on
    along -p, where p is the least point of the hull found, as long as that finds new gradients, and at most for as many
    directions again. If p is 0, the point is stationary. If the derivative along -p is :math:`-\|p\|^2` and the
    function is convex nearby, p is the point of least norm in all of the Clarke subdifferential. Else there may be more
    pieces: a function may have exponentially many.

    Args:
      fun: a function as for `torch.func.grad`, with a scalar result.
      argnums: which arguments to differentiate with respect to, as for `torch.func.grad`.
      directions: along how many directions to ask at first.
      generator: for other draws.

    Returns:
      A function of the arguments of ``fun`` that returns a `jaxclamp.Subdifferential`. ``fun`` runs on copies of them,
      and leaves running averages and torch's random numbers as they are.

    Raises:
      TypeError: ``fun`` is not callable; when called, an argument is not of floating-point tensors.
      ValueError: ``directions`` is not a positive number; when called, a gradient is not finite.
      RuntimeError: when called, as `grad`.
      NotImplementedError: when called, as `grad`.

    >>> around = subdifferential(lambda x: x.abs().max())(torch.zeros(2))
    >>> len(around.gradients), around.is_differentiable, around.min_norm.tolist()
    (4, False, [0.0, 0.0])
    >>> around.contains(torch.tensor([0.5, -0.5])), around.contains(torch.tensor([1.0, 1.0]))
    (True, False)

    Source: Bertsekas and Mitter, A descent numerical method for optimization problems with nondifferentiable cost
    functionals (1973), for the search along -p.
    """
    check_function("subdifferential", fun)
    check_directions(directions)

    @functools.wraps(fun)
    def search(*args: Any, **kwargs: Any) -> Subdifferential:
        _refuse_here("subdifferential")
        active = _active("subdifferential", args, argnums)
        leaves = _leaves_of("subdifferential", active, "the argument")
        source = generator or torch.Generator().manual_seed(0)
        size = sum(leaf.numel() for leaf in leaves)
        # `explored` takes the opposite of each, too.
        draws = torch.randn(((directions + 1) // 2, size), dtype=torch.float64, generator=source, device=source.device)

        def flatten(tree: Tree) -> np.ndarray[Any, Any]:
            flat = [leaf.detach().double().cpu().flatten() for leaf in flattened(tree)[0]]
            return torch.cat(flat).numpy()

        def unflatten(vector: np.ndarray[Any, Any]) -> Tree:
            parts = torch.from_numpy(vector).split([leaf.numel() for leaf in leaves])
            shaped = [part.reshape(leaf.shape).to(leaf) for part, leaf in zip(parts, leaves, strict=True)]
            return unflattened(flattened(active)[1], shaped)

        def along_vector(vector: np.ndarray[Any, Any]) -> tuple[float, np.ndarray[Any, Any]]:
            with _rehearsal(args, kwargs) as copies:
                derivative, gradient = _differentiated(
                    "subdifferential", fun, argnums, False, unflatten(vector), *copies
                )
            return derivative.item(), flatten(gradient)

        # Two gradients that differ by rounding are one piece, and the least precise argument says how much that is.
        epsilon = max(torch.finfo(leaf.dtype).eps for leaf in leaves)
        return explored(along_vector, draws.cpu().numpy(), epsilon, flatten, unflatten)

    return search


def _differentiated(
    name: str,
    fun: Callable[..., Any],
    argnums: int | tuple[int, ...],
    has_aux: bool,
    direction: Tree,
    args: Sequence[Any],
    kwargs: Any,
) -> tuple[torch.Tensor, Tree]:
    """Return the derivative of ``fun`` along ``direction``, and the gradient of the piece that is entered."""
    positions = positions_of(name, args, argnums)
    active = tuple(args[position] for position in positions)
    tangents = (direction,) if isinstance(argnums, int) else direction
    _check(name, active, "the argument", tangents, "direction")

    node = None

    # Reverse mode over forward mode: the value was computed by the pieces that are entered, and its gradient is theirs.
    def primal(*active: Tree) -> tuple[torch.Tensor, torch.Tensor]:
        def of_active(*active: Tree) -> Any:
            moving = dict(zip(positions, active, strict=True))
            result = fun(*(moving.get(i, arg) for i, arg in enumerate(args)), **kwargs)
            if has_aux and not (isinstance(result, tuple) and len(result) == 2):
                raise TypeError(f"{name}: has_aux=True, and fun returned {type(result).__name__}; return a pair.")
            return result[0] if has_aux else result

        nonlocal node
        value, derivative = _pushed_forward(name, of_active, active, tuple(tangents))
        if not isinstance(value, torch.Tensor):
            raise RuntimeError(f"{name}: the result of fun is {type(value).__name__}; return a scalar, such as a sum.")
        if value.dim() or not value.is_floating_point():
            raise RuntimeError(
                f"{name}: the result of fun is a tensor of shape {tuple(value.shape)} and {value.dtype}; return a real "
                "scalar, such as a sum."
            )
        # Taken here, within the vjp: the value that a transformation of torch.func returns has lost its node.
        node = value.grad_fn
        return value, derivative

    value, pull, derivative = torch.func.vjp(primal, *active, has_aux=True)  # type: ignore[misc]  # has_aux
    cotangent = torch.ones_like(value)
    gradient = pull(cotangent)
    gradients, structure = flattened(gradient)
    if node is not None and has_nan(gradients):
        gradients = certified(gradients, node, lambda: flattened(pull(cotangent))[0])
        gradient = unflattened(structure, gradients)
    return derivative, gradient[0] if isinstance(argnums, int) else gradient


def _pushed_forward(name: str, fun: Callable[..., R], inputs: tuple[Tree, ...], v: tuple[Tree, ...]) -> tuple[R, R]:
    """Return the result of ``fun`` and its derivative, with all choices decided along v."""

    def decided(*inputs: Tree) -> R:
        with Decided():
            return fun(*inputs)

    depth = depth_of_transformations() + 1  # the jvp below is one more
    with _named_cure(name, _CURES_OF_FUNCTIONS), _alone(name), moving_by(Tangents(depth)):
        # Dynamo has left this call to Python, but would compile each function within, one by one, which takes long.
        jvp = torch.compiler.disable(torch.func.jvp) if is_compiled() else torch.func.jvp
        return jvp(decided, inputs, v)  # type: ignore[return-value]  # there is no aux


_WITHOUT_FORWARD_MODE = (
    "{} needs forward mode: write a jvp for your autograd.Function, or avoid this function. In the place of a module's "
    "full backward hook take a hook of a tensor. For attention "
    "there is torch.nn.attention.sdpa_kernel(SDPBackend.MATH), for an LSTM "
    "torch.backends.mkldnn.flags(enabled=False), and on a GPU torch.backends.cudnn.flags(enabled=False)."
)
_CURES = {
    "more than one element of the written-to": "{} gives each element a tangent of its own: of an argument whose "
    "elements share memory, as of expand(), pass a clone().",
    "saved tensor hooks": "{} cannot compute again, as a checkpoint does: call the function without one.",
    "setup_context": "{} needs setup_context and a jvp of an autograd.Function: write them. "
    "checkpoint(use_reentrant=True) has neither: call the function without it.",
    "Nested forward mode AD": "{} takes the one level of forward mode that torch has: within it, call jacrev in "
    "the place of jacfwd, jacrev twice in the place of hessian, and neither jvp nor another along.",
    "higher order operator": "{} does not reach into torch.cond, while_loop and their kin, which compile their "
    "branches: write an if or a while in Python, or torch.where.",
}
"""Maps words in the message of a RuntimeError of torch to what to do about it."""
_CURES_OF_FUNCTIONS = {
    **_CURES,
    "ZeroTensors are immutable": "{} needs forward mode of the gradient of mse_loss, which fails in torch: write "
    "((input - target) ** 2).mean().",
    "does not have a grad_fn": "{} does not reach torch.autograd.grad and backward() within the function: call "
    "torch.func.grad there.",
}
"""The same where a function is differentiated; a block has backward passes in it."""


@contextlib.contextmanager
def _named_cure(name: str, cures: Mapping[str, str]) -> Iterator[None]:
    """Add to an error of torch in the block what the caller of the function called ``name`` can do about it."""
    try:
        yield
    except RuntimeError as error:
        notes = [cure for words, cure in cures.items() if words in str(error)]
        if isinstance(error, NotImplementedError):
            notes = [_WITHOUT_FORWARD_MODE]
        for note in {note.format(name) for note in notes}.difference(getattr(error, "__notes__", ())):
            error.add_note(note)  # which an inner call may have added
        raise


_FREEZING = (torch.Tensor.requires_grad_, torch.Tensor.requires_grad.__set__)  # type: ignore[attr-defined]
_SET_DATA = torch.Tensor.data.__set__  # type: ignore[attr-defined]  # as `torch.nn.Module.double` does


class _Uncompiled(Decided):
    """The block of `along`: it gives tensors their tangents, refuses compiled functions, and watches for losses."""

    def __init__(self, losses: Losses, tangents: Tangents, directions: Mapping[torch.Tensor, torch.Tensor]) -> None:
        super().__init__()
        self._losses = losses
        self._tangents = tangents
        self._directions = directions
        self._tape = Tape(directions)
        self._parts = defaultdict[torch.Tensor, list[torch.Tensor]](list)
        """Maps what parameters show the memory of, as a rule themselves, to these."""
        for parameter in directions:
            self._parts[whole_of(parameter)].append(parameter)
        self._versions = {whole: version_of(whole) for whole in self._parts}
        tangents.are_late = True
        if not self._tape.begins_late():
            self._give_late_tangents()

    def _give_late_tangents(self) -> None:
        """Give the parameters their tangents, if these are late."""
        if self._tangents.are_late:
            self._tangents.are_late = False
            self._tape.end()
            torch.clear_autocast_cache()  # it may hold casts of the parameters from before they had tangents
            self._move(self._directions)

    def _move(self, parameters: Iterable[torch.Tensor]) -> None:
        """Give parameters their tangents: their directions, or 0 where they are frozen."""
        v = self._directions
        _give_tangents({x: v[x] if x.requires_grad else torch.zeros_like(v[x]) for x in parameters})

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if is_compiled():
            raise RuntimeError("along: a compiled function has no tangents; call the function that was compiled.")
        if func == _SET_DATA and args[0] in self._versions and args[0].dtype != args[1].dtype:
            raise RuntimeError(
                f"along: a parameter of {args[0].dtype} becomes one of {args[1].dtype} in the block, and its tangent "
                "stays; convert the model before the block."
            )
        # Such a backward pass frees the graph, in which the gradients of a loss are looked for.
        if func in BACKWARD and not (kwargs or {}).get("create_graph"):
            self._losses.settle(self.complete)
        result = self._called(func, types, args, kwargs)
        if func in _FREEZING and args[0] in self._directions and not self._tangents.are_late:
            self._move(args[:1])
        # What overwrites a parameter or a part of it, as `torch.nn.init` and ``w[0] = 0`` do, overwrites its tangent.
        for overwritten in operands(result, *args[:1]):
            if isinstance(overwritten, torch.Tensor) and (whole := whole_of(overwritten)) in self._versions:
                self._restore_tangents(whole)
        self._losses.see(PINNED.get(func, func), args, result)
        return result

    def _called(self, func: Callable[..., Any], types: Any, args: Any, kwargs: Any) -> Any:
        """Call the function in the block of `Decided`, and give tensors the tangents that it needs and they lack."""
        tensors = [x for x in operands(*args, *(kwargs or {}).values()) if isinstance(x, torch.Tensor)]
        if func is torch.Tensor.register_hook and len(args) == 2:
            args = (args[0], self._tape.apart_from(args[1]))
        if func is torch.Tensor.retain_grad:
            self._tape.retain(args[0])
        if func in _FREEZING and args[0] in self._directions:
            self._tape.hold(args[0])
        call = functools.partial(super().__torch_function__, func, types, args, kwargs)
        if self._tangents.are_late and waits(PINNED.get(func, func), args, kwargs or {}, tensors):
            with contextlib.suppress(LateTangentError):
                result = call()
                self._tape.note(result)
                return result
        if func in BACKWARD and not self._tape.is_empty():
            # The numbers that it has saved may lack their tangents. So the gradients get theirs as what is on the tape.
            with without_forward_mode():
                result = call()
            self._tape.end()
            self._tape.note(result)
            return result
        # torch.func allows `requires_grad_` in a block of its own, which a backward pass would end.
        if (self._tangents.are_late or not self._tape.is_empty()) and func is not torch.Tensor.requires_grad_:
            for x in tensors:
                for needed in (x, *roots.behind(x)):
                    outside_of_transformations(self._tangents.depth, self.complete, needed)
        return call()

    def complete(self, x: torch.Tensor) -> Sequence[torch.Tensor]:
        """Give a tensor, and the parameters, the tangents that they lack."""
        self._give_late_tangents()
        if torch.is_grad_enabled() and not propagates_tangents():  # in a ``jvp``, whose numbers are tangents
            return ()
        if x.requires_grad and not moves(x) and x.layout is torch.strided and self._tape.lacks_tangent(x):
            refuse_without_jvp(x)
            _give_tangents(self._tape.tangents_of(x))
        return ()

    def on_choice_of_torch(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Warn, once for each line, of a tie of what needs a gradient, as a weight computed before the block does."""
        # Not by `is_active`: in forward mode, as here, that holds of all tensors.
        needs_gradient = any(isinstance(x, torch.Tensor) and x.requires_grad for x in operands(*args, *kwargs.values()))
        if not (needs_gradient and torch.is_grad_enabled() and can_tie(func)):
            return
        try:
            _, tied = tied_elements(func, args, kwargs)
        except (TypeError, ValueError, RuntimeError):  # no numbers to see, or a call that fails by itself too
            return
        if tied:
            warn_once(
                line_of_user(),
                f"{name_of(func)} is on a tie, and torch decides it, since what needs a gradient there has no tangent. "
                "Name the tensor to along, and compute in the block what is made of it; interop.ties lists the line",
            )

    def _restore_tangents(self, whole: torch.Tensor) -> None:
        if self._versions[whole] != (version := version_of(whole)):
            self._versions[whole] = version
            # A write to what is no leaf is a part of the program, where gradients are recorded.
            self._move(x for x in self._parts[whole] if x.is_leaf or not torch.is_grad_enabled())


def _give_tangents(tangents: Mapping[torch.Tensor, torch.Tensor]) -> None:
    """Give tensors their tangents by what is copied to them; they stay the same tensors."""
    with torch.no_grad(), with_forward_mode(), with_old_versions(tangents):  # which is off in a Function's ``forward``
        for tensor, tangent in tangents.items():
            tensor.copy_(forward_ad.make_dual(tensor.detach(), tangent))


def _active(name: str, args: Sequence[Any], argnums: int | tuple[int, ...]) -> Tree:
    active = tuple(args[position] for position in positions_of(name, args, argnums))
    return active[0] if isinstance(argnums, int) else active


def _trained(parameters: Any) -> list[torch.Tensor]:
    """Return those of the parameters that require grad, once each."""
    if isinstance(parameters, torch.nn.Module):
        parameters = parameters.parameters()
    elif isinstance(parameters, torch.Tensor):
        parameters = [parameters]
    elif not isinstance(parameters, Iterable):
        raise TypeError(f"along: parameters is {parameters!r}; pass a module, a tensor or several.")
    tensors = list(parameters)
    for tensor in tensors:
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"along: one of the parameters is {tensor!r}; pass a module, a tensor or several.")
        if tensor.is_inference():
            raise TypeError(
                "along: one of the parameters was made under torch.inference_mode(), and no gradient reaches it; make "
                "the model outside of that, or pass a clone that was taken outside of it."
            )
    moving = list(dict.fromkeys(tensor for tensor in tensors if tensor.requires_grad))  # weights may be tied
    if not moving:
        raise ValueError(
            "along: none of the parameters requires grad; pass those with respect to which to differentiate."
        )
    return _leaves_of("along", moving, "parameters")


def _leaves_of(name: str, tree: Tree, what: str) -> list[torch.Tensor]:
    leaves, _ = flattened(tree)
    for leaf in leaves:
        if not isinstance(leaf, torch.Tensor) or not leaf.is_floating_point():
            kind = leaf.dtype if isinstance(leaf, torch.Tensor) else type(leaf).__name__
            raise TypeError(f"{name}: {what} has a leaf of {kind}; pass floating-point tensors.")
        if leaf.dtype.itemsize == 1:
            raise TypeError(
                f"{name}: {what} has a tensor of {leaf.dtype}, of which torch adds up nothing; pass one of 16 bits or "
                "more, and convert it in the function."
            )
        if leaf.is_nested or leaf.layout is not torch.strided:
            raise TypeError(
                f"{name}: {what} has a tensor that is {'nested' if leaf.is_nested else leaf.layout}, of which torch "
                "carries no tangents; pass a dense one, and convert it in the function."
            )
        if is_without_numbers(leaf):
            raise TypeError(
                f"{name}: {what} has a fake tensor, or one on the meta device, without numbers to choose by; pass "
                "tensors that have numbers."
            )
        if sharding := sharding_of(leaf):
            raise TypeError(
                f"{name}: {what} has a tensor that {sharding} has cut into parts, of which torch carries no tangents; "
                "take the gradient of the whole model, in one process or in DistributedDataParallel."
            )
    return leaves


def _check(name: str, tree: Tree, what: str, directions: Tree, argument: str) -> None:
    leaves = _leaves_of(name, tree, what)
    (_, structure), (tangents, structure_of_tangents) = flattened(tree), flattened(directions)
    if len(tangents) != len(leaves):
        raise ValueError(f"{name}: {what}: {len(leaves)} tensors, {argument}: {len(tangents)}; pass one for each.")
    if structure != structure_of_tangents:
        raise ValueError(f"{name}: {argument} has the structure {structure_of_tangents}, and {what} {structure}.")
    for leaf, tangent in zip(leaves, tangents, strict=True):
        if not isinstance(tangent, torch.Tensor):
            raise ValueError(f"{name}: {argument} has {tangent!r}; pass tensors, of the shapes and dtypes of {what}.")
        for attribute in ("shape", "dtype", "device"):
            has, needs = getattr(tangent, attribute), getattr(leaf, attribute)
            if has != needs:
                raise ValueError(f"{name}: {argument} has a tensor of {attribute} {has}, where {what} has {needs}.")


def _drawn(leaves: Sequence[torch.Tensor], like: Tree, generator: torch.Generator | None) -> Tree:
    sources: dict[torch.device, torch.Generator] = {}
    drawn = []
    for leaf in leaves:
        source = generator or sources.setdefault(leaf.device, torch.Generator(leaf.device).manual_seed(0))
        with without_transformations():  # a vmap would refuse to draw
            draw = torch.randn(leaf.shape, dtype=leaf.dtype, device=source.device, generator=source).to(leaf.device)
        # Where points are a batch, so are their directions: what overwrites one overwrites the other.
        drawn.append(torch.zeros_like(leaf) + draw if is_transformed() else draw)
    return unflattened(flattened(like)[1], drawn)


_DRAWN: MutableMapping[torch.Tensor, tuple[Any, list[torch.Tensor]]] = WeakTensorKeyDictionary()
"""Maps the first of several parameters to the shapes, dtypes and devices of all, and to their direction."""


def _drawn_once(parameters: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return the direction that is always the same. To draw it anew would be a quarter of the time of a small step."""
    forms = [(parameter.shape, parameter.dtype, parameter.device) for parameter in parameters]
    known, drawn = _DRAWN.get(parameters[0], (None, []))
    if known != forms:
        drawn = _drawn(parameters, parameters, None)
        _DRAWN[parameters[0]] = forms, drawn
    return drawn


@contextlib.contextmanager
def _rehearsal(*arguments: Tree) -> Iterator[Tree]:
    """Enter a block for a run before the one that counts, with copies of the arguments; behind it all is as before."""
    leaves, structure = flattened(arguments)
    # By identity: an argument that comes twice is one copy, which the function may write to by either.
    copies = {id(leaf): leaf.clone() for leaf in leaves if isinstance(leaf, torch.Tensor)}
    devices = {copy.device for copy in copies.values() if copy.is_cuda}  # the CPU's random numbers are put back anyway
    with torch.random.fork_rng(devices), _Rehearsed():
        yield unflattened(structure, [copies.get(id(leaf), leaf) for leaf in leaves])


class _Rehearsed(TorchFunctionMode):
    """A block in which running averages stay as they are: torch.func lets a function change them."""

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (functional.batch_norm, functional.instance_norm):
            input, *averages = args[:3]
            args = (input, *(average if average is None else average.clone() for average in averages), *args[3:])
        kwargs = keywords_of(func, kwargs)
        return func(*args, **kwargs)


def _refuse_both(name: str, direction: Tree, generator: torch.Generator | None) -> None:
    if direction is not None and generator is not None:
        raise ValueError(f"{name}: direction and generator are both given; pass direction, or a generator to draw one.")


def _refuse_here(name: str) -> None:
    if torch.compiler.is_compiling():
        raise RuntimeError(COMPILED.format(name))
    if is_forward_mode() and not is_transformed():  # the levels of torch.func nest
        raise RuntimeError(_AT_WORK.format(name))


_AT_WORK = (
    "{}: forward mode is at work already, in this thread or in another; torch has one level of it in a process. Leave "
    "the other block of along or of forward_ad.dual_level first; for torch.func.linearize, call torch.func.jvp."
)
_LEVEL = threading.RLock()


@contextlib.contextmanager
def _alone(name: str) -> Iterator[None]:
    """Let no other thread enter, which torch would give the same tangents: of two that come at once, refuse one."""
    if not _LEVEL.acquire(blocking=False):
        raise RuntimeError(_AT_WORK.format(name))
    try:
        yield
    finally:
        roots.forget()
        _LEVEL.release()
