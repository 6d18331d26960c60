"""JAX functions as torch functions: how a call is taken apart, run, and put on torch's tape, the same for all."""

from __future__ import annotations

import functools
import inspect
import itertools
import operator
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, TypeAlias, get_args

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch.overrides import handle_torch_function, has_torch_function

from interop._arrays import (
    WIDE,
    Order,
    adopt,
    host_device,
    lend,
    lend_from_gpu,
    lend_from_host,
    memory_orders,
    refuse_after_fork,
)
from interop._private import (
    into_old_vmap,
    is_forward_mode,
    is_in_old_vmap,
    is_transformed,
    old_vmap_level,
    out_of_old_vmap,
)

Save: TypeAlias = Literal["inputs", "residuals"]


def wrap_for_torch(function: Callable[..., Any], *, save: Save = "inputs") -> Callable[..., Any]:
    """``function``, written in JAX, as a function of torch tensors with gradients.

    Args:
      function: a JAX function that can be jitted, of pytrees (dicts, lists, tuples, ...) of arrays.
      save: what is kept for the backward pass. ``"inputs"`` are there already, as a rule, and the backward pass
        computes anew what it needs of them. ``"residuals"`` is what JAX's reverse pass needs, such as one byte per
        element for the ops of jaxclamp, where the input can be freed; this has no second derivative, and
        torch.func and torch.compile save the inputs all the same.

    Returns:
      A function with the same parameters. Tensors among its arguments become arrays, and arrays in its result tensors.
      Floats, NumPy and JAX arrays are traced too; all else (ints, bools, strings, functions) is static, so a new value
      of it compiles anew. Gradients reach the tensors that require them, to any order, in reverse and in forward mode,
      and under torch.func's transformations. Compiled once per shapes, dtypes and active inputs; 64-bit dtypes stay
      64-bit whatever JAX's mode is. The result never shares memory with an argument.

    Raises:
      TypeError: ``function`` is not callable.
      ValueError: ``save`` is unknown.

    Raises when called:
      TypeError: a tensor without plain memory or of a dtype that JAX lacks, or a static argument that is not hashable
        or is a `torch.nn.Module`.
      ValueError: tensors on different devices.
      RuntimeError: the process was forked after JAX had started; and, as for native functions, in the backward pass
        when an argument was changed in place after the call.

    >>> softplus = wrap_for_torch(lambda x, beta=1.0: jnp.logaddexp(0.0, beta * x) / beta)
    >>> x = torch.zeros(2, requires_grad=True)
    >>> softplus(x, beta=2.0).sum().backward()
    >>> x.grad
    tensor([0.5000, 0.5000])
    """
    if not callable(function):
        raise TypeError(f"wrap_for_torch: function is {function!r}; pass a function written in JAX.")
    if save not in get_args(Save):
        raise ValueError(f"wrap_for_torch: save={save!r} is not one of {', '.join(map(repr, get_args(Save)))}.")
    resolve = resolver(function, save)

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        flat, traced, tensors = resolve(args, kwargs)
        if has_torch_function(tensors):
            return handle_torch_function(wrapped, tensors, *args, **kwargs)
        return flat(traced, is_wide((*tensors, *traced)), tensors)

    return traceable(wrapped)


def resolver(
    function: Callable[..., Any], save: Save = "inputs", is_elementwise: bool = False
) -> Callable[[tuple[Any, ...], dict[str, Any]], tuple[FlatFunction, tuple[Any, ...], list[torch.Tensor]]]:
    """What finds, for arguments of ``function``, the flat function to call, and with what."""
    by_structure: dict[Any, FlatFunction] = {}

    def resolve(
        args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[FlatFunction, tuple[Any, ...], list[torch.Tensor]]:
        leaves, structure = jax.tree.flatten((args, kwargs))
        tensors: list[torch.Tensor] = []
        traced: list[Any] = []
        kinds: list[Any] = []
        for leaf in leaves:
            if isinstance(leaf, torch.Tensor):
                tensors.append(leaf)
                kinds.append(_TENSOR)
            elif isinstance(leaf, _TRACED_TYPES):
                # The backward pass sees what the forward pass saw, whatever the caller does to the array between them.
                traced.append(leaf.copy() if isinstance(leaf, np.ndarray) else leaf)
                kinds.append(_TRACED)
            else:
                kinds.append((type(leaf), leaf))  # 0 == False, yet they are not the same argument
        key = (structure, *kinds)
        try:
            flat = by_structure.get(key)
        except TypeError as error:
            raise TypeError(_describe_unhashable(function, args, kwargs)) from error
        if flat is None:
            paths = [path for path, _ in jax.tree_util.tree_flatten_with_path((args, kwargs))[0]]
            _refuse_modules(function, paths, leaves)
            names = [_argument(function, path) for path, kind in zip(paths, kinds, strict=True) if kind is _TENSOR]
            flattened = _flatten(function, structure, kinds)
            flat = by_structure[key] = FlatFunction(flattened, _name(function), names, save, is_elementwise)
        return flat, tuple(traced), tensors

    return resolve


_TRACEABLE: weakref.WeakValueDictionary[str, Callable[..., Any]] = weakref.WeakValueDictionary()
_NUMBERS = itertools.count()


def traceable(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function``, which Dynamo does not look into: what it does with tensors enters the graph as it is."""
    key = f"{_name(function)} {next(_NUMBERS)}"  # no number: Dynamo would take it for a symbol
    _TRACEABLE[key] = function

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            from interop._graph import call_traceable  # loads Dynamo, which takes a second

            return call_traceable(key, args, kwargs)
        return function(*args, **kwargs)

    return call


def untraced(key: str) -> Callable[..., Any]:
    """The function that got this key from `traceable`."""
    return _TRACEABLE[key]


_LEAF = jax.tree.structure(0)
_TENSOR = object()
_TRACED = object()
_TRACED_TYPES = (float, complex, np.ndarray, np.generic, jax.Array)


def _flatten(function: Callable[..., Any], structure: Any, kinds: Sequence[Any]) -> Callable[..., Any]:
    def flat(traced: Sequence[Any], *arrays: jax.Array) -> Any:
        sources = {_TENSOR: iter(arrays), _TRACED: iter(traced)}
        leaves = [next(sources[kind]) if kind in sources else kind[1] for kind in kinds]
        args, kwargs = jax.tree.unflatten(structure, leaves)
        return function(*args, **kwargs)

    return flat


class FlatFunction:
    """A JAX function of flat arrays, ``function(traced, *arrays)``, called with tensors.

    Its derivatives are flat functions too, so whatever holds for a wrapped function holds for its derivatives.

    Args:
      arguments: what the caller calls the arrays.
      is_elementwise: whether the results may lie in memory as the arrays do.
      is_flat: whether the result is a tuple of arrays and needs no structure, as that of a derivative.
      resembled: which arrays the outputs have the shapes and dtypes of, where it is known.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        name: str,
        arguments: Sequence[str],
        save: Save = "inputs",
        is_elementwise: bool = False,
        is_flat: bool = False,
        resembled: tuple[bool, ...] = (),
    ) -> None:
        self.function = function
        self.save = save
        self.is_elementwise = is_elementwise
        self.name = name
        self.arguments = arguments
        self.compiled = _compile(function, name)
        self.is_flat = is_flat
        self.resembled = resembled
        self.derived: dict[tuple[str, Any], FlatFunction] = {}
        self.reordered: dict[tuple[Order, ...], tuple[Callable[..., Any], Order]] = {}

    def __call__(self, traced: tuple[Any, ...], wide: bool, tensors: Sequence[torch.Tensor]) -> Any:
        leaves, tree = self.leaves(traced, wide, tensors)
        return leaves[0] if tree is _LEAF else jax.tree.unflatten(tree, leaves)

    def leaves(
        self, traced: tuple[Any, ...], wide: bool, tensors: Sequence[torch.Tensor]
    ) -> tuple[Sequence[torch.Tensor], Any]:
        """The leaves of the result, on torch's tape where it asks for them, and its structure, None if it is flat."""
        if tensors and (torch.compiler.is_compiling() or tensors[0].is_meta):
            from interop._graph import leaves_in_graph  # loads Dynamo, which takes a second

            return leaves_in_graph(self, traced, wide, tensors)
        if not is_recorded(tensors):
            return self.compute(traced, wide, tensors)
        on_tape: type[torch.autograd.Function] = _Call
        if is_transformed():
            on_tape = _TransformedCall
        elif self.save == "residuals" and not is_forward_mode():
            on_tape = _SavingCall
        task = Task(self, traced, wide)
        outputs = on_tape.apply(task, *tensors)
        return outputs, task.tree

    def compute(
        self, traced: tuple[Any, ...], wide: bool, tensors: Sequence[torch.Tensor], is_row_major: bool = False
    ) -> tuple[list[torch.Tensor], Any]:
        """The leaves of the result, finished, and its structure. Nothing of it is recorded.

        If the function is elementwise, they lie in memory as the first tensor does, unless asked for as row-major.
        """
        refuse_after_fork()
        if torch.jit.is_tracing():  # type: ignore[attr-defined]
            raise RuntimeError(f"{self.name}: torch.jit.trace would record its result as a constant; use torch.export.")
        on_cpu = not (tensors and tensors[0].is_cuda)
        if not on_cpu:  # on CPU, to lend a tensor of another device fails
            self.check_devices(tensors)
        lend_one = lend_from_host if on_cpu else lend_from_gpu
        try:
            orders = memory_orders(tensors) if self.is_elementwise and not is_row_major else None
            if orders is None:
                program, axes = self.compiled, None
                arrays = [lend_one(tensor) for tensor in tensors]
            else:
                program, axes = self._in_memory_order(orders)
                arrays = list(map(lend_one, tensors, orders))
        except (TypeError, RuntimeError):
            self.check_devices(tensors)
            self._name_culprit(tensors)
            raise
        device = host_device() if on_cpu else None
        if device is None:
            result = in_width(wide, program, traced, *arrays)
        else:
            with jax.default_device(device):
                result = in_width(wide, program, traced, *arrays)
        if not self.is_flat and isinstance(result, jax.Array):
            return [adopt(result, on_cpu, axes)], _LEAF
        leaves, tree = (result, None) if self.is_flat else jax.tree.flatten(result)
        try:
            return [adopt(leaf, on_cpu, axes) for leaf in leaves], tree
        except TypeError:
            jax.block_until_ready(leaves)  # the others may still be reading what was lent
            raise

    def _in_memory_order(self, orders: tuple[Order, ...]) -> tuple[Callable[..., Any], Order]:
        """The program for arrays with their axes in ``orders``, and the axes of its results as torch has them."""
        if orders not in self.reordered:
            program = _compile(functools.partial(_reordered, self.function, orders), self.name)
            self.reordered[orders] = program, None if orders[0] is None else _inverse(orders[0])
        return self.reordered[orders]

    def pullback(self, active: tuple[bool, ...]) -> FlatFunction:
        """From the arrays and a cotangent of each inexact output to the cotangents of the active arrays."""
        # Looked up here, since every backward pass asks for it: the arguments alone would take 0.8 us more.
        return self.derived.get(("gradient", active)) or self._derive(
            "gradient", _pullback, active, is_elementwise=self.is_elementwise, is_flat=True, resembled=active
        )

    def linearized(self, active: tuple[bool, ...]) -> FlatFunction:
        """From the arrays to the outputs and the `jax.vjp` function of the active arrays."""
        return self._derive("linearization", _vjp, active)

    def transposed(self, pull: Any) -> FlatFunction:
        """From residuals, of the structure ``pull``, and cotangents to the cotangents of the arrays active then."""
        return self._derive("gradient from residuals", _transposed, pull, is_flat=True)

    def pushforward(self, active: tuple[bool, ...]) -> FlatFunction:
        """From the arrays and a tangent of each active one to the tangents of the inexact outputs."""
        return self._derive("tangent", _pushforward, active, is_elementwise=self.is_elementwise, is_flat=True)

    def batched(self, axes: tuple[int | None, ...]) -> FlatFunction:
        """The function of arrays that have a batch axis where ``axes`` says so; the outputs have it in front."""
        return self._derive("batch", _batched, axes)

    def _derive(
        self,
        kind: str,
        transformation: Callable[..., Any],
        detail: Any,
        is_elementwise: bool = False,
        is_flat: bool = False,
        resembled: tuple[bool, ...] = (),
    ) -> FlatFunction:
        key = (kind, detail)
        if key not in self.derived:
            function = functools.partial(transformation, self.function, detail)
            name = f"the {kind} of {self.name}"
            self.derived[key] = FlatFunction(
                function, name, self.arguments, is_elementwise=is_elementwise, is_flat=is_flat, resembled=resembled
            )
        return self.derived[key]

    def check_devices(self, tensors: Sequence[torch.Tensor]) -> None:
        for tensor in tensors:
            if tensor.device != tensors[0].device:
                devices = ", ".join(f"{name} on {t.device}" for name, t in zip(self.arguments, tensors, strict=False))
                raise ValueError(
                    f"{self.name}: the tensors are on different devices: {devices}; move them to one with .to(...)."
                ) from None  # `compute` asks when the memory of one could not be read, which is then no news

    def _name_culprit(self, tensors: Iterable[torch.Tensor]) -> None:
        for name, tensor in zip(self.arguments, tensors, strict=False):
            try:
                lend(tensor)
            except TypeError as error:
                raise TypeError(f"{self.name}: {name}: {error}") from error


def _compile(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """``function`` compiled; what it returns is new, also where `jax.disable_jit` has it run as it is written."""

    def fresh(traced: Sequence[Any], *arrays: jax.Array) -> Any:
        result = function(traced, *arrays)
        if jax.config.jax_disable_jit:  # type: ignore[attr-defined]
            return jax.tree.map(lambda leaf: jnp.array(leaf, copy=True), result)
        return result

    fresh.__name__ = fresh.__qualname__ = name  # what errors and profiles of JAX call it
    return jax.jit(fresh)


def _reordered(function: Callable[..., Any], orders: Sequence[Order], traced: Sequence[Any], *arrays: jax.Array) -> Any:
    """``function`` of arrays whose axes are in ``orders``, and its results in the first of them. XLA moves nothing."""
    arrays = tuple(
        array if order is None else array.transpose(_inverse(order))
        for array, order in zip(arrays, orders, strict=True)
    )
    order = orders[0] or ()
    return jax.tree.map(
        lambda leaf: leaf.transpose(order) if leaf.ndim == len(order) else leaf, function(traced, *arrays)
    )


def _inverse(order: Sequence[int]) -> tuple[int, ...]:
    return tuple(sorted(range(len(order)), key=order.__getitem__))


class Task:
    """A call but for its tensors, as one argument, since torch looks at each; and what is known of its result."""

    tree: Any
    inexact: list[bool]

    def __init__(self, flat: FlatFunction, traced: tuple[Any, ...], wide: bool) -> None:
        self.flat = flat
        self.traced = traced
        self.wide = wide


class _Call(torch.autograd.Function):
    """One call of a flat function, on torch's tape. It keeps the inputs, which torch then guards against changes."""

    @staticmethod
    def forward(ctx: Any, task: Task, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        outputs, task.tree = task.flat.compute(task.traced, task.wide, tensors)
        remember(ctx, task, tensors, outputs)
        if is_forward_mode():
            ctx.save_for_forward(*tensors)
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        active = ctx.needs_input_grad[1:]
        return None, *pull_back(ctx, ctx.task.flat.pullback(active), active, gradients, _call_derivative)

    @staticmethod
    def jvp(ctx: Any, *tangents: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        given = [tangent for tangent in tangents[1:] if tangent is not None]
        active = tuple([tangent is not None for tangent in tangents[1:]])
        pushed = iter(_call_derivative(ctx, ctx.task.flat.pushforward(active), given))
        return tuple([next(pushed) if inexact else None for inexact in ctx.task.inexact])


class _SavingCall(torch.autograd.Function):
    """`_Call` that keeps the residuals of JAX's reverse pass, and not the inputs."""

    @staticmethod
    def forward(ctx: Any, task: Task, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.active = ctx.needs_input_grad[1:]
        leaves, tree = task.flat.linearized(ctx.active).compute(task.traced, task.wide, tensors)
        task.tree, ctx.pull = tree.children()
        outputs = leaves[: task.tree.num_leaves]
        task.traced = ()  # they are among the residuals
        remember(ctx, task, leaves[len(outputs) :], outputs)
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        if torch.is_grad_enabled():  # torch's once_differentiable lets this pass where the gradients are constants
            raise RuntimeError(
                f"{ctx.task.flat.name}: with save='residuals' there is no second derivative, which create_graph=True "
                "asks for; use save='inputs'."
            )
        derivative = ctx.task.flat.transposed(ctx.pull)
        return None, *pull_back(ctx, derivative, ctx.active, gradients, _call_derivative)


def remember(ctx: Any, task: Task, tensors: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> None:
    """Keep on ``ctx`` what the derivatives need of a call."""
    ctx.task = task
    ctx.save_for_backward(*tensors)
    ctx.set_materialize_grads(False)
    task.inexact = inexact = []
    for output in outputs:
        inexact.append(output.is_floating_point() or output.is_complex())
    if not all(inexact):
        ctx.mark_non_differentiable(*itertools.compress(outputs, map(operator.not_, inexact)))
    if len(outputs) > 1:  # then some may have a gradient, and others none
        ctx.zeros = [functools.partial(torch.zeros, o.shape, dtype=o.dtype, device=o.device) for o in outputs]


def pull_back(
    ctx: Any,
    derivative: FlatFunction,
    active: Sequence[bool],
    gradients: Sequence[torch.Tensor | None],
    call: Callable[[Any, FlatFunction, Sequence[torch.Tensor]], Sequence[torch.Tensor]],
) -> Sequence[torch.Tensor | None]:
    """The gradient of each active input, None for the others."""
    # An output marked as not differentiable has no gradient.
    cotangents = [gradient for gradient in gradients if gradient is not None]
    if not cotangents:
        return [None] * len(active)
    if len(cotangents) < len(gradients):
        outputs = zip(gradients, ctx.zeros, ctx.task.inexact, strict=True)
        cotangents = [zeros() if gradient is None else gradient for gradient, zeros, inexact in outputs if inexact]
    pulled = call(ctx, derivative, cotangents)
    if all(active):
        return pulled
    remaining = iter(pulled)
    return [next(remaining) if is_active else None for is_active in active]


def _call_derivative(ctx: Any, derivative: FlatFunction, directions: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    traced, wide = ctx.task.traced, ctx.task.wide  # in the mode of the forward pass the dtypes agree
    tensors = (*ctx.saved_tensors, *directions)
    for direction in directions:
        if is_in_old_vmap(direction):
            return _call_in_old_vmap(derivative, traced, wide, tensors)
    return derivative.leaves(traced, wide, tensors)[0]


def _call_in_old_vmap(
    flat: FlatFunction, traced: tuple[Any, ...], wide: bool, tensors: Sequence[torch.Tensor]
) -> Sequence[torch.Tensor]:
    """Batched gradients, as ``is_grads_batched=True`` asks for them, come from a vmap older than torch.func's.

    It cannot be extended in public: here its tensors are unwrapped, and the results wrapped again.
    """
    if old_vmap_level() > 1:
        raise NotImplementedError(f"{flat.name}: batched gradients within batched gradients; use torch.func.vmap.")
    axes = tuple([0 if is_in_old_vmap(tensor) else None for tensor in tensors])
    plain = [t if axis is None else out_of_old_vmap(t) for t, axis in zip(tensors, axes, strict=True)]
    return list(map(into_old_vmap, flat.batched(axes).leaves(traced, wide, plain)[0]))


class _TransformedCall(torch.autograd.Function):
    """`_Call` under torch.func, which wants the context set up apart and pays for it by 7 us a call."""

    @staticmethod
    def forward(task: Task, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        outputs, task.tree = task.flat.compute(task.traced, task.wide, tensors)
        return tuple(outputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
        task, *tensors = inputs
        remember(ctx, task, tensors, output)
        ctx.save_for_forward(*tensors)

    backward = staticmethod(_Call.backward)
    jvp = staticmethod(_Call.jvp)

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[int | None, ...],
        task: Task,
        *tensors: torch.Tensor,
    ) -> tuple[tuple[torch.Tensor, ...], tuple[int, ...]]:
        outputs, task.tree = task.flat.batched(in_dims[1:]).leaves(task.traced, task.wide, tensors)
        return tuple(outputs), (0,) * len(outputs)


def _restrict(
    function: Callable[..., Any], active: Sequence[bool], traced: Sequence[Any], primals: Sequence[jax.Array]
) -> tuple[Callable[..., Any], tuple[jax.Array, ...]]:
    """``function`` of the active primals alone, and these."""

    def restricted(*moving: jax.Array) -> Any:
        remaining = iter(moving)
        return function(traced, *(next(remaining) if a else p for a, p in zip(active, primals, strict=True)))

    return restricted, tuple(p for a, p in zip(active, primals, strict=True) if a)


def _vjp(
    function: Callable[..., Any], active: Sequence[bool], traced: Sequence[Any], *arrays: jax.Array
) -> tuple[Any, Callable[..., tuple[jax.Array, ...]]]:
    """The outputs, and what maps a cotangent of each inexact one to the cotangents of the active arrays."""
    restricted, moving = _restrict(function, active, traced, arrays)

    def of_inexact(*moving: jax.Array) -> tuple[list[jax.Array], Any]:
        outputs = restricted(*moving)
        return list(filter(_is_inexact, jax.tree.leaves(outputs))), outputs

    _, pull, outputs = jax.vjp(of_inexact, *moving, has_aux=True)
    return outputs, pull


def _pull(pull: Callable[..., tuple[jax.Array, ...]], cotangents: Sequence[jax.Array]) -> tuple[jax.Array, ...]:
    # JAX's cotangents are those of the transpose, torch's gradients those of the adjoint: conjugates, if complex.
    return tuple(map(jnp.conj, pull(list(map(jnp.conj, cotangents)))))


def _batched(
    function: Callable[..., Any], axes: tuple[int | None, ...], traced: Sequence[Any], *arrays: jax.Array
) -> Any:
    return jax.vmap(function, in_axes=(None, *axes))(traced, *arrays)


def _transposed(
    function: Callable[..., Any], pull: Any, traced: Sequence[Any], *arrays: jax.Array
) -> tuple[jax.Array, ...]:
    """All that is needed of ``function`` is in ``pull``."""
    count = pull.num_leaves
    return _pull(jax.tree.unflatten(pull, arrays[:count]), arrays[count:])


def _pullback(
    function: Callable[..., Any], active: Sequence[bool], traced: Sequence[Any], *arrays: jax.Array
) -> tuple[jax.Array, ...]:
    return _pull(_vjp(function, active, traced, *arrays[: len(active)])[1], arrays[len(active) :])


def _pushforward(
    function: Callable[..., Any], active: Sequence[bool], traced: Sequence[Any], *arrays: jax.Array
) -> tuple[jax.Array, ...]:
    restricted, moving = _restrict(function, active, traced, arrays[: len(active)])
    outputs, tangents = jax.jvp(restricted, moving, arrays[len(active) :])
    pairs = zip(jax.tree.leaves(outputs), jax.tree.leaves(tangents), strict=True)
    return tuple(tangent for output, tangent in pairs if _is_inexact(output))


def _is_inexact(array: jax.Array) -> bool:
    return bool(jnp.issubdtype(array.dtype, jnp.inexact))


def in_width(wide: bool, function: Callable[..., Any], *args: Any) -> Any:
    """Call ``function`` with JAX's 64-bit mode on or off."""
    if wide == jax.config.jax_enable_x64:  # type: ignore[attr-defined]
        return function(*args)
    with jax.enable_x64(wide):
        return function(*args)


def is_wide(values: Iterable[Any]) -> bool:
    """Whether JAX has to compute with ``values`` in its 64-bit mode."""
    for value in values:
        if getattr(value, "dtype", None) in WIDE:
            return True
    return bool(jax.config.jax_enable_x64)  # type: ignore[attr-defined]


def is_recorded(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether torch may ask for derivatives of a call with ``tensors``, under torch.func always."""
    if torch.is_grad_enabled():
        for tensor in tensors:
            if tensor.requires_grad:
                return True
    return is_forward_mode() or is_transformed()


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", type(function).__name__)


def _argument(function: Callable[..., Any], path: Sequence[Any]) -> str:
    """What the caller calls the leaf at ``path`` of ``(args, kwargs)``."""
    where, argument, *rest = path
    if where.idx == 1:
        name = argument.key
    else:
        positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        names = [p.name for p in inspect.signature(function).parameters.values() if p.kind in positional]
        name = names[argument.idx] if argument.idx < len(names) else f"argument {argument.idx}"
    return f"{name}{jax.tree_util.keystr(tuple(rest))}"


def _refuse_modules(function: Callable[..., Any], paths: Sequence[Any], leaves: Sequence[Any]) -> None:
    """Raise where a module of torch is an argument: JAX would take its parameters for constants."""
    for path, leaf in zip(paths, leaves, strict=True):
        if isinstance(leaf, torch.nn.Module):
            raise TypeError(
                f"{_name(function)}: {_argument(function, path)} is a {type(leaf).__name__}, a module of torch; pass "
                "its parameters, as dict(module.named_parameters())."
            )


def _describe_unhashable(function: Callable[..., Any], args: Any, kwargs: Any) -> str:
    for path, leaf in jax.tree_util.tree_flatten_with_path((args, kwargs))[0]:
        try:
            hash(leaf)
        except TypeError:
            if not isinstance(leaf, _TRACED_TYPES):
                return (
                    f"{_name(function)}: {_argument(function, path)} is a {type(leaf).__name__}, which is neither an "
                    "array nor hashable; pass an array, or bind it beforehand with functools.partial."
                )
    raise AssertionError("a key of hashable leaves is hashable")
