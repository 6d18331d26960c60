"""Calls a JAX function of flat arrays with tensors: compiles it, lends it the tensors, and adopts its results.

In ``interop.clamp(x, 0.0, 6.0)``, for example, the flat function is ``f((0.0, 6.0), x)``: XLA reads the memory of the
tensor x, and the result is a tensor over the memory that XLA wrote. Nothing is recorded here. The pullback of f is the
flat function ``g((0.0, 6.0), x, cotangent)``, which is called in the same way, so what holds for f holds for g.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import jax
import jax.export
import jax.numpy as jnp
import torch

from interop._bridge import derivatives
from interop._bridge.arrays import (
    X64,
    Order,
    adopt,
    host_device,
    jax_dtype,
    lend,
    lend_from_gpu,
    lend_from_host,
    memory_orders,
    refuse_after_fork,
    torch_dtype,
)
from interop._bridge.bounded import Bounded

Save: TypeAlias = Literal["inputs", "residuals"]
"""What is kept for a backward pass."""

Layout: TypeAlias = Literal["row-major", "kept", "channels_last"]
"""The order of the axes of results in memory.

They are row-major, or kept as in the first tensor, or channels_last if the first tensor is."""

CHANNELS_LAST = (0, 2, 3, 1)
"""The axes of an image batch in torch's memory format of that name, the outermost first."""

LEAF = jax.tree.structure(0)
"""The structure of a result that is one array."""


@dataclass(eq=False)
class FlatFunction:
    """A JAX function of flat arrays, ``function(non_tensors, *arrays)``.

    ``non_tensors`` are the arrays that come from no tensor, such as numbers; JAX traces them, so new values compile
    nothing. The arrays that come from tensors are passed one by one.
    """

    function: Callable[..., Any]
    name: str
    """What errors and profiles call it."""
    arguments: Sequence[str]
    """What the caller calls the arrays that come from tensors."""
    save: Save = "inputs"
    layout: Layout = "row-major"
    is_flat: bool = False
    """Whether the result is a tuple of arrays, as that of a derivative, and has no other structure."""
    resembled: tuple[bool, ...] = ()
    """Which of the arrays have, one by one, the shapes and dtypes of the results; empty if it is not known."""

    def __post_init__(self) -> None:
        self.compiled = _compile(self.function, self.name)
        # Bounded, as a program may go on to ask for new ones: under a vmap, say, or with another order of axes.
        self._derived: dict[tuple[str, Any], FlatFunction] = Bounded(256)
        self._reordered: dict[tuple[Order, ...], tuple[Callable[..., Any], Order]] = Bounded(256)

    def compute(
        self, non_tensors: tuple[Any, ...], x64: bool, tensors: Sequence[torch.Tensor], is_row_major: bool = False
    ) -> tuple[list[torch.Tensor], Any]:
        """Return the leaves of the result, finished, and its structure, or None if it is flat.

        The leaves lie in memory as the layout of the function says, unless they are asked for as row-major. Meta
        tensors give meta tensors.
        """
        refuse_after_fork()
        if torch.jit.is_tracing():  # type: ignore[attr-defined]
            raise RuntimeError(f"{self.name}: torch.jit.trace would record its result as a constant; use torch.export.")
        if tensors and tensors[0].is_meta:
            self.check_devices(tensors)
            described, tree = self.describe(non_tensors, x64, tensors)
            return [torch.empty(shape, dtype=dtype, device="meta") for shape, dtype in described], tree
        on_cpu = not (tensors and tensors[0].is_cuda)
        if not on_cpu:  # on CPU, lending a tensor of another device fails by itself
            self.check_devices(tensors)
        lend_one = lend_from_host if on_cpu else lend_from_gpu
        try:
            orders = None if self.layout == "row-major" or is_row_major else memory_orders(tensors)
            if orders is None or (self.layout == "channels_last" and orders[0] != CHANNELS_LAST):
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
        # The contexts are entered only where they change something: they take 1.3 us of the 36 us of a small call.
        if device is None and x64 == jax.config.jax_enable_x64:  # type: ignore[attr-defined]
            result = program(non_tensors, *arrays)
        else:
            with jax.default_device(device or jax.config.jax_default_device), jax.enable_x64(x64):  # type: ignore[attr-defined]
                result = program(non_tensors, *arrays)
        if not self.is_flat and isinstance(result, jax.Array):
            return [adopt(result, on_cpu, axes)], LEAF
        leaves, tree = (result, None) if self.is_flat else jax.tree.flatten(result)
        try:
            return [adopt(leaf, on_cpu, axes) for leaf in leaves], tree
        except TypeError:
            jax.block_until_ready(leaves)  # the others may still be reading what was lent
            raise

    def _in_memory_order(self, orders: tuple[Order, ...]) -> tuple[Callable[..., Any], Order]:
        """Compile for arrays with axes in ``orders``; return the program, and the axes of its results in torch."""
        if orders not in self._reordered:
            program = _compile(functools.partial(_reordered, self.function, orders), self.name)
            self._reordered[orders] = program, None if orders[0] is None else _inverse(orders[0])
        return self._reordered[orders]

    def describe(
        self, non_tensors: tuple[Any, ...], x64: bool, tensors: Sequence[torch.Tensor]
    ) -> tuple[list[tuple[tuple[Any, ...], torch.dtype]], Any]:
        """Return shape and dtype of each leaf of the result, and its structure; sizes may be torch's symbols."""
        if self.resembled:
            # Not strict, as the cotangents of a pullback stand behind the arrays.
            like = [t for t, is_resembled in zip(tensors, self.resembled, strict=False) if is_resembled]
            return [(tuple(tensor.shape), tensor.dtype) for tensor in like], None

        def evaluate(shapes: Sequence[tuple[Any, ...]]) -> Any:
            arrays = [jax.ShapeDtypeStruct(s, jax_dtype(t.dtype)) for s, t in zip(shapes, tensors, strict=True)]
            return with_x64(x64, jax.eval_shape, self.compiled, non_tensors, *arrays)

        # Torch's symbols become JAX's, so that one graph serves all sizes. By their texts: to compare two symbols would
        # make torch guard what it finds.
        sizes = {str(n): n for tensor in tensors for n in tensor.shape if isinstance(n, torch.SymInt)}
        names = {size: f"n{i}" for i, size in enumerate(sizes)}
        symbols = dict(zip(names, jax.export.symbolic_shape(",".join(names.values())), strict=True))
        try:
            result = evaluate([tuple([symbols.get(str(n), n) for n in tensor.shape]) for tensor in tensors])
        except Exception:  # whatever a function raises that makes a choice by the size: one graph for each shape
            if not sizes:
                raise
            result = evaluate([tuple(map(int, tensor.shape)) for tensor in tensors])
        outputs, tree = jax.tree.flatten(result)
        terms = {name: sizes[size] for size, name in names.items()}
        # JAX shows what an expression of its symbols consists of as text alone, such as ``2*n0 + 1``.
        shapes = [
            tuple([n if isinstance(n, int) else eval(str(n), _FUNCTIONS, terms) for n in output.shape])
            for output in outputs
        ]
        dtypes = [torch_dtype(output.dtype) for output in outputs]
        return list(zip(shapes, dtypes, strict=True)), None if self.is_flat else tree

    # The derivatives, which `interop._bridge.derivatives` describes.

    def pullback(self, active: tuple[bool, ...]) -> FlatFunction:
        # Looked up here, since every backward pass asks for it: the arguments alone would take 0.8 us more.
        return self._derived.get(("gradient", active)) or self._derive(
            "gradient", derivatives.pullback, active, layout=self.layout, is_flat=True, resembled=active
        )

    def linearized(self, active: tuple[bool, ...]) -> FlatFunction:
        return self._derive("linearization", derivatives.linearized, active)

    def transposed(self, pull: Any) -> FlatFunction:
        return self._derive("gradient from residuals", derivatives.transposed, pull, is_flat=True)

    def pushforward(self, active: tuple[bool, ...]) -> FlatFunction:
        return self._derive("tangent", derivatives.pushforward, active, layout=self.layout, is_flat=True)

    def batched(self, axes: tuple[int | None, ...]) -> FlatFunction:
        return self._derive("batch", derivatives.batched, axes)

    def _derive(self, kind: str, transformation: Callable[..., Any], detail: Any, **known: Any) -> FlatFunction:
        key = (kind, detail)
        if key not in self._derived:
            function = functools.partial(transformation, self.function, detail)
            self._derived[key] = FlatFunction(function, f"the {kind} of {self.name}", self.arguments, **known)
        return self._derived[key]

    # The errors.

    def check_devices(self, tensors: Sequence[torch.Tensor]) -> None:
        """Raise unless all tensors are on one device."""
        for tensor in tensors:
            if tensor.device != tensors[0].device:
                devices = ", ".join(f"{name} on {t.device}" for name, t in zip(self.arguments, tensors, strict=False))
                raise ValueError(
                    f"{self.name}: the tensors are on different devices: {devices}; move them to one with .to(...)."
                ) from None  # `compute` checks after a failure to lend, which this explains

    def _name_culprit(self, tensors: Iterable[torch.Tensor]) -> None:
        for name, tensor in zip(self.arguments, tensors, strict=False):  # cotangents, behind them, have no names
            try:
                lend(tensor)
            except TypeError as error:
                raise TypeError(f"{self.name}: {name}: {error}") from error


_FUNCTIONS = {"floordiv": operator.floordiv, "mod": operator.mod, "max": torch.sym_max, "min": torch.sym_min}


def _compile(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Compile the function. Under `jax.disable_jit`, where it may return an argument, results are new arrays too."""

    def fresh(non_tensors: Sequence[Any], *arrays: jax.Array) -> Any:
        result = function(non_tensors, *arrays)
        if jax.config.jax_disable_jit:  # type: ignore[attr-defined]
            return jax.tree.map(lambda leaf: jnp.array(leaf, copy=True), result)
        return result

    fresh.__name__ = fresh.__qualname__ = name  # what errors and profiles of JAX call it
    return jax.jit(fresh)


def _reordered(
    function: Callable[..., Any], orders: Sequence[Order], non_tensors: Sequence[Any], *arrays: jax.Array
) -> Any:
    """Call the function with arrays whose axes are in ``orders``; its results are in the first of these orders.

    The arrays are row-major in these orders, so that elementwise functions move nothing in memory.
    """
    arrays = tuple(
        array if order is None else array.transpose(_inverse(order))
        for array, order in zip(arrays, orders, strict=True)
    )
    order = orders[0] or ()
    return jax.tree.map(
        lambda leaf: leaf.transpose(order) if leaf.ndim == len(order) else leaf, function(non_tensors, *arrays)
    )


def _inverse(order: Sequence[int]) -> tuple[int, ...]:
    """Return the order that puts axes back: of channels_last, (0, 2, 3, 1), that is (0, 3, 1, 2)."""
    return tuple(sorted(range(len(order)), key=order.__getitem__))


def with_x64(x64: bool, function: Callable[..., Any], *args: Any) -> Any:
    """Call ``function`` with JAX's 64-bit mode on or off."""
    if x64 == jax.config.jax_enable_x64:  # type: ignore[attr-defined]
        return function(*args)
    with jax.enable_x64(x64):
        return function(*args)


def needs_x64(values: Iterable[Any]) -> bool:
    """Return whether JAX has to compute with ``values`` in its 64-bit mode."""
    return jax.config.jax_enable_x64 or any(getattr(value, "dtype", None) in X64 for value in values)  # type: ignore[attr-defined]
