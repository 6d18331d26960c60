"""Checks what whole programs are differentiated by and along which direction, and draws directions.

What is drawn without a generator is what `jaxclamp.grad` draws without a key.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import jax
import torch

from interop._torch.in_numpy import is_all_finite, is_any
from interop._torch.private_api import (
    flattened,
    is_transformed,
    is_without_numbers,
    sharding_of,
    unflattened,
    without_transformations,
)
from jaxclamp._shared.drawn_numbers import mixed, seeds

Tree: TypeAlias = Any


def leaves_of(name: str, tree: Tree, what: str) -> list[torch.Tensor]:
    """Return the leaves of a tree; raise unless all are tensors of which torch carries tangents.

    ``name`` is the function that a user calls, and ``what`` the argument, for the error.
    """
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


def checked_direction(name: str, tree: Tree, what: str, directions: Tree, argument: str) -> Tree:
    """Return the directions, as a batch where points are one: what overwrites one overwrites the other.

    Raise unless they are tensors in the structure of the tree, of the same shapes, dtypes and devices.
    """
    leaves = leaves_of(name, tree, what)
    (_, structure), (tangents, structure_of_tangents) = flattened(tree), flattened(directions)
    if len(tangents) != len(leaves):
        raise ValueError(f"{name}: {what}: {len(leaves)} tensors, {argument}: {len(tangents)}; pass one for each.")
    if structure != structure_of_tangents:
        raise ValueError(
            f"{name}: {argument} has the structure {structure_of_tangents}; pass one with that of {what}, {structure}."
        )
    for leaf, tangent in zip(leaves, tangents, strict=True):
        if not isinstance(tangent, torch.Tensor):
            raise ValueError(f"{name}: {argument} has {tangent!r}; pass tensors, of the shapes and dtypes of {what}.")
        for attribute in ("shape", "dtype", "device"):
            has, needs = getattr(tangent, attribute), getattr(leaf, attribute)
            if has != needs:
                raise ValueError(
                    f"{name}: {argument} has a tensor of {attribute} {has}; pass one of {needs}, that of {what}."
                )
    if not is_transformed():
        return directions
    moved = [torch.zeros_like(leaf) + tangent for leaf, tangent in zip(leaves, tangents, strict=True)]
    return unflattened(structure, moved)


def random_direction(leaves: Sequence[torch.Tensor], generator: torch.Generator) -> list[torch.Tensor]:
    """Draw a tensor for each leaf from a normal distribution."""
    with without_transformations():  # a vmap would refuse to draw
        return [
            torch.randn(leaf.shape, dtype=leaf.dtype, device=generator.device, generator=generator).to(leaf.device)
            for leaf in leaves
        ]


def places_in_jax(structure: Any) -> Sequence[int]:
    """Return the places that the leaves of a tree have in torch's order, listed in that of JAX.

    JAX sorts the keys of dicts: of ``{"b": x, "a": y}`` they are 1, 0. Of a tree that JAX does not know they are 0, 1.
    """
    places = range(structure.num_leaves)
    try:
        in_jax = jax.tree.leaves(unflattened(structure, places))
    except ValueError:  # keys of a dict that cannot be compared, as 0 and "a"
        return places
    return in_jax if set(map(type, in_jax)) <= {int} and len(in_jax) == len(places) else places


class Drawn:
    """A direction of numbers between -1 and 1, made once, and kept for tensors of the same shapes, dtypes and devices.

    To make it anew would be a quarter of the time of a small step of training.
    """

    def __init__(self) -> None:
        self._last: tuple[Any, list[torch.Tensor]] = None, []
        """Both at once, as several threads may draw."""

    def of(self, leaves: Sequence[torch.Tensor], structure: Any = None) -> list[torch.Tensor]:
        """Return a tensor for each leaf of a tree of that structure, or of a list."""
        forms = [(leaf.shape, leaf.dtype, leaf.device) for leaf in leaves]
        known, direction = self._last
        if known != (structure, forms):
            places = range(len(leaves)) if structure is None else places_in_jax(structure)
            seed_at = dict(zip(places, seeds(len(leaves)), strict=True))
            with without_transformations():
                direction = [_drawn(seed_at[place], *form) for place, form in enumerate(forms)]
            self._last = (structure, forms), direction
        return direction


def _drawn(seed: int, shape: torch.Size, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    drawn = torch.empty(shape.numel(), dtype=dtype, device=device)
    # In float32 at least: of few numbers, many would be equal.
    wide = torch.promote_types(dtype, torch.float32)
    # Part by part, as the integers of 64 bits would take more memory than the direction, and leave the cache.
    for start, part in enumerate(drawn.split(_PART)):
        counted = torch.arange(part.numel(), device=device) + (seed + start * _PART)
        part.copy_(mixed(_in_32_bits(counted), _in_32_bits).to(wide) * 2.0**-31 - 1)
    return drawn.reshape(shape)


_PART = 2**16


def _in_32_bits(numbers: Any) -> Any:
    return numbers & 0xFFFFFFFF


def refuse_nowhere(name: str, direction: Tree) -> None:
    """Raise if the direction of a gradient has NaN or infinity, or is 0: along these no piece is entered."""
    leaves, _ = flattened(direction)
    if not all(map(is_all_finite, leaves)):
        raise ValueError(f"{name}: direction has NaN or infinity, which point nowhere; pass finite numbers.")
    if any(map(torch.numel, leaves)) and not any(map(is_any, leaves)):
        raise ValueError(f"{name}: direction is 0, which points nowhere; pass other numbers, or no direction.")


def check_generator(name: str, generator: torch.Generator | None) -> None:
    """Raise unless the generator of a caller of the function of that name is one, if there is any."""
    if not isinstance(generator, torch.Generator | None):
        raise TypeError(f"{name}: generator is {generator!r}; pass torch.Generator().manual_seed(0), of any seed.")


def refuse_both(name: str, direction: Tree, generator: torch.Generator | None) -> None:
    """Raise if the caller of the function of that name gave a direction, and a generator to draw one."""
    check_generator(name, generator)
    if direction is not None and generator is not None:
        raise ValueError(f"{name}: direction and generator are both given; pass direction, or a generator to draw one.")
