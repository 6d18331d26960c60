"""Derivatives of whole torch programs: `directional_derivative`, `grad` and `subdifferential`.

A function runs on dual tensors, in a block in which each choice is decided by their tangents. Forward mode then gives
the one-sided derivative. Reverse mode gives the gradient of the piece that the function enters: for
``relu(x) - relu(-x)`` at 0 along the direction 1 the piece is ``x - 0``.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from interop._programs.decided import Decided
from interop._programs.directions import (
    Drawn,
    Tree,
    check_generator,
    checked_direction,
    leaves_of,
    places_in_jax,
    random_direction,
    refuse_both,
    refuse_nowhere,
)
from interop._programs.forward_mode import CURES_OF_FUNCTIONS, alone, named_cure, refuse_here
from interop._programs.nan_gradients import certified, has_nan
from interop._programs.order import Tangents, are_around, moving_by
from interop._torch.private_api import depth_of_transformations, flattened, is_compiled, keywords_of, unflattened
from jaxclamp._rules.operands import check_function, positions_of
from jaxclamp._shared.subdifferential import Subdifferential, check_directions, explored, normal_draws

R = TypeVar("R")


def directional_derivative(fun: Callable[..., R], inputs: Tree, directions: Tree) -> tuple[R, R]:
    r"""Return the value and the one-sided derivative :math:`\lim_{t \to 0+} (f(x + t v) - f(x)) / t`.

    Exact at kinks too, however the function is spelled, and not linear in v there. It holds for functions that are
    smooth but for choices, and continuous. The choices are comparisons, and so `torch.where`, masks, and an ``if`` on
    the outcome; maximum, minimum, clamp, abs, sign and the activations made of them; extrema along axes, sort, topk,
    medians and quantiles, cumulative extrema, max pooling, ``scatter_reduce``; norms of order 1 or more, standard
    deviations and roots of quadratic forms, as ``(x * x + y * y).sqrt()``; losses with a margin or an absolute value;
    and what jumps: rounding, remainders, rounded quotients, conversions to integers, signs and angles, ``bucketize``
    and ``searchsorted``, ``isclose``, ``allclose`` and ``equal``, and whether a tensor itself is zero, as in ``if x``,
    ``any`` and ``nonzero``; all as functions, methods, in-place forms and modules. Where the function itself jumps, the
    derivative is that of the piece beyond the jump.

    What is within other transformations of torch.func in ``fun`` is decided along v, too: ``vmap``, ``grad``, ``vjp``,
    ``jvp``, ``jacrev``, ``jacfwd``, ``hessian``, ``functional_call``.

    Taken as they are at x:

    - Of what jumps, ``frexp``, ``nextafter``, ``isin``, ``histc``, ``matrix_rank`` and ``where(x)``; numbers that are
      written to integers or truth values, as by ``index[:] = x``; the bits of a number, as ``x.view(torch.int32)``;
      ``softplus`` at a threshold below 20; the probability of a quantile.
    - Choices in torch's kernels: modes, ``rrelu`` in training, ``linalg.cond`` for 1 and infinity, norms and
      power-average pooling of an order below 1; the bounds ``max_norm`` in ``embedding``, and ``eps`` in
      ``cosine_similarity`` and ``gaussian_nll_loss``.
    - What torch does not see: numbers taken out with ``item()``, masks of what ``detach()`` or ``.data`` cut off, or of
      a gradient that `torch.autograd.grad` took without ``create_graph``, an ``autograd.Function``, as is what
      `wrap_for_torch` returns, TorchScript. An operator of `torch.library.custom_op` has the derivative 0 in
      `directional_derivative`, as in `torch.func.jvp`, and an error in `grad`.
    - What has no choices, and is not smooth: standard deviations of complex numbers at 0, equal singular values and
      eigenvalues, and branch cuts of complex functions.
    - Choices of a `directional_derivative`, `grad` or `subdifferential` of this package within ``fun`` among what moves
      there: its own direction decides them.

    A `jaxclamp.UndecidedWarning` names the line, once, where a value that moves is where such a function jumps, or at
    equal elements of a mode, at equal singular values or eigenvalues, at a pixel of ``grid_sample``, or at the bound
    ``max_norm``. No warning comes for ``histc``, ``matrix_rank``, ``cond``, branch cuts, deviations of complex numbers,
    the other bounds and the pooling just named, and for what torch does not see.

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
    refuse_here(name)
    if isinstance(inputs, torch.Tensor):
        inputs, directions = (inputs,), (directions,)
    elif not isinstance(inputs, tuple | list):
        raise TypeError(f"{name}: inputs is a {type(inputs).__name__}; pass a tensor, or a tuple of the arguments.")
    directions = checked_direction(name, inputs, "inputs", directions, "directions")
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
      direction: v, of the structure of the argument, or for several ``argnums`` a tuple of such. Without it, v has
        numbers between -1 and 1, always the same: those that `jaxclamp.grad` takes too.
      generator: for others, drawn from a normal distribution at each call.

    Returns:
      A function of the arguments of ``fun``, which returns the gradient, or a pair of it and the auxiliary result, for
      which ``fun`` runs once more, as in `directional_derivative`.

    Raises:
      TypeError: ``fun`` is not callable, or ``generator`` no `torch.Generator`; when called, an argument is not of
        floating-point tensors.
      ValueError: both ``direction`` and ``generator`` are given; when called, ``direction`` has another structure,
        shape or dtype than the argument, is not finite, or is 0.
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
    gradient = _gradient("grad", fun, argnums, has_aux, direction, generator)
    if not has_aux:
        return gradient

    with_result = _with_result("grad", gradient, fun)

    @functools.wraps(fun)
    def with_aux(*args: Any, **kwargs: Any) -> Any:
        of_arguments, (_, aux) = with_result(*args, **kwargs)
        return of_arguments, aux

    return with_aux


def grad_and_value(
    fun: Callable[..., Any],
    argnums: int | tuple[int, ...] = 0,
    has_aux: bool = False,
    *,
    direction: Tree = None,
    generator: torch.Generator | None = None,
) -> Callable[..., Any]:
    """Return the gradient of ``fun`` as `grad` gives it, and its value, to the bit.

    The signature and the order are those of `torch.func.grad_and_value`.

    Args:
      fun, argnums, has_aux: as for `torch.func.grad_and_value`.
      direction, generator: as for `grad`.

    Returns:
      A function of the arguments of ``fun``, which returns a pair: the gradient, and what ``fun`` returns in a run of
      its own, as in `directional_derivative`.

    Raises:
      TypeError, ValueError, RuntimeError, NotImplementedError: as `grad`.

    >>> grad_and_value(lambda x: torch.relu(x) - torch.relu(-x) + 5.0)(torch.tensor(0.0))
    (tensor(1.), tensor(5.))
    """
    gradient = _gradient("grad_and_value", fun, argnums, has_aux, direction, generator)
    return _with_result("grad_and_value", gradient, fun)


def _gradient(
    name: str,
    fun: Callable[..., Any],
    argnums: int | tuple[int, ...],
    has_aux: bool,
    direction: Tree,
    generator: torch.Generator | None,
) -> Callable[..., Any]:
    """Return a function that returns the gradient of ``fun``, without the auxiliary result."""
    check_function(name, fun)
    refuse_both(name, direction, generator)
    drawn = Drawn()

    def first_of_pair(*args: Any, **kwargs: Any) -> Any:
        result = fun(*args, **kwargs)
        if not (isinstance(result, tuple) and len(result) == 2):
            raise TypeError(f"{name}: has_aux=True, and fun returned {type(result).__name__}; return a pair.")
        return result[0]

    @functools.wraps(fun)
    def gradient(*args: Any, **kwargs: Any) -> Any:
        refuse_here(name)
        active = _active(name, args, argnums)
        v = direction
        if v is None:
            leaves, structure = leaves_of(name, active, "the argument"), flattened(active)[1]
            numbers = drawn.of(leaves, structure) if generator is None else random_direction(leaves, generator)
            v = unflattened(structure, numbers)
        return _differentiated(name, first_of_pair if has_aux else fun, argnums, v, args, kwargs)[-1]

    return gradient


def _with_result(name: str, gradient: Callable[..., Any], fun: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that returns the gradient, and what ``fun`` returns."""

    @functools.wraps(fun)
    def with_result(*args: Any, **kwargs: Any) -> Any:
        refuse_here(name)
        # The result is to have no tangents: a second run makes it, of the arguments as they are.
        with _rehearsal(args, kwargs) as (copied_args, copied_kwargs):
            of_arguments = gradient(*copied_args, **copied_kwargs)
        return of_arguments, fun(*args, **kwargs)

    return with_result


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
      generator: for other draws. Without it they are always the same, in `jaxclamp` too.

    Returns:
      A function of the arguments of ``fun`` that returns a `jaxclamp.Subdifferential`. ``fun`` runs on copies of them,
      and leaves running averages and torch's random numbers as they are.

    Raises:
      TypeError: ``fun`` is not callable, or ``generator`` no `torch.Generator`; when called, an argument is not of
        floating-point tensors.
      ValueError: ``directions`` is not a positive number; when called, the value or a gradient is not finite.
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
    check_generator("subdifferential", generator)

    @functools.wraps(fun)
    def search(*args: Any, **kwargs: Any) -> Subdifferential:
        refuse_here("subdifferential")
        active = _active("subdifferential", args, argnums)
        leaves, structure = leaves_of("subdifferential", active, "the argument"), flattened(active)[1]
        places = places_in_jax(structure)
        draws = normal_draws(directions, sum(leaf.numel() for leaf in leaves))
        if generator is not None:
            drawn = torch.randn(draws.shape, dtype=torch.float64, generator=generator, device=generator.device)
            draws = drawn.cpu().numpy()

        def flatten(tree: Tree) -> np.ndarray[Any, Any]:
            flat = [leaf.detach().double().cpu().flatten() for leaf in flattened(tree)[0]]
            return torch.cat([flat[place] for place in places]).numpy()

        def unflatten(vector: np.ndarray[Any, Any]) -> Tree:
            parts = torch.from_numpy(vector).split([leaves[place].numel() for place in places])
            part_at = dict(zip(places, parts, strict=True))
            shaped = [part_at[place].reshape(leaf.shape).to(leaf) for place, leaf in enumerate(leaves)]
            return unflattened(structure, shaped)

        def along_vector(vector: np.ndarray[Any, Any]) -> tuple[float, float, np.ndarray[Any, Any]]:
            with _rehearsal(args, kwargs) as copies:
                result = _differentiated("subdifferential", fun, argnums, unflatten(vector), *copies)
            value, derivative, gradient = result
            return value.item(), derivative.item(), flatten(gradient)

        # Two gradients that differ by rounding are one piece, and the least precise argument says how much that is.
        epsilon = max(torch.finfo(leaf.dtype).eps for leaf in leaves)
        return explored(along_vector, draws, epsilon, flatten, unflatten)

    return search


def _differentiated(
    name: str,
    fun: Callable[..., Any],
    argnums: int | tuple[int, ...],
    direction: Tree,
    args: Sequence[Any],
    kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor, Tree]:
    """Return the value, the derivative along ``direction``, and the gradient of the piece that is entered."""
    positions = positions_of(name, args, argnums)
    active = tuple(args[position] for position in positions)
    is_one = isinstance(argnums, int)
    direction = checked_direction(name, active[0] if is_one else active, "the argument", direction, "direction")
    refuse_nowhere(name, direction)
    tangents = (direction,) if is_one else direction

    node = None

    # Reverse mode over forward mode: the value was computed by the pieces that are entered, and its gradient is theirs.
    def primal(*active: Tree) -> tuple[torch.Tensor, torch.Tensor]:
        def of_active(*active: Tree) -> Any:
            moving = dict(zip(positions, active, strict=True))
            return _checked_scalar(name, fun(*(moving.get(i, arg) for i, arg in enumerate(args)), **kwargs))

        nonlocal node
        value, derivative = _pushed_forward(name, of_active, active, tuple(tangents))
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
    return value, derivative, gradient[0] if is_one else gradient


def _checked_scalar(name: str, value: Any) -> torch.Tensor:
    """Return the result of the function; raise unless it is one real number."""
    if not isinstance(value, torch.Tensor):
        raise RuntimeError(
            f"{name}: the result of fun is {type(value).__name__}; return a scalar tensor, as a sum, and no item()."
        )
    if value.dim() or not value.is_floating_point():
        raise RuntimeError(
            f"{name}: the result of fun is a tensor of shape {tuple(value.shape)} and {value.dtype}; return a real "
            "scalar, such as a sum."
        )
    return value


def _pushed_forward(name: str, fun: Callable[..., R], inputs: tuple[Tree, ...], v: tuple[Tree, ...]) -> tuple[R, R]:
    """Return the result of ``fun`` and its derivative, with all choices decided along v."""

    tangents = Tangents(depth_of_transformations() + 1)  # the jvp below is one more

    def decided(*inputs: Tree) -> R:
        with _DecidedBy(tangents):
            return fun(*inputs)

    with named_cure(name, CURES_OF_FUNCTIONS), alone(name), moving_by(tangents):
        # Dynamo has left this call to Python, but would compile each function within, one by one, which takes long.
        jvp = torch.compiler.disable(torch.func.jvp) if is_compiled() else torch.func.jvp
        return jvp(decided, inputs, v)  # type: ignore[return-value]  # there is no aux


class _DecidedBy(Decided):
    """A block that decides by its own tangents what a derivative within it, whose tangents are others, hands on.

    In ``grad(lambda x: grad(lambda y: relu(x) * y)(1.0))`` the inner block hands the relu on, as x stands still there.
    """

    def __init__(self, tangents: Tangents) -> None:
        super().__init__()
        self._tangents = tangents

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if are_around(self._tangents):
            return super().__torch_function__(func, types, args, kwargs)
        with moving_by(self._tangents):
            return super().__torch_function__(func, types, args, kwargs)


def _active(name: str, args: Sequence[Any], argnums: int | tuple[int, ...]) -> Tree:
    active = tuple(args[position] for position in positions_of(name, args, argnums))
    return active[0] if isinstance(argnums, int) else active


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
