"""Compare the parameters that both models came with, where each keeps its own."""

from collections.abc import Iterator

import jax.numpy as jnp

from interop.comparison.leaves import coarsest
from interop.comparison.models.judgements import Judged, Judgement, apart_of
from interop.comparison.models.mapping import Pair, ParameterMapping
from interop.frameworks.base import Array


def rounded_alike(values: list[dict[str, Array]], mapping: ParameterMapping) -> list[dict[str, Array]]:
    """Return the values of both models; if a parameter differs by rounding alone, both get that of the coarser dtype.

    Else rounding of parameters would look like a bug of the layer, as it does not vanish in float64: 0.1 in bfloat16 is
    0.10009765625 there, too.
    """
    for pair in mapping.pairs:
        a, b = values[0][pair.first.name], values[1][pair.second.name]
        if not _agree(pair, _apart(pair)):
            continue
        if coarsest((a.dtype, b.dtype)) == a.dtype:
            values[1][pair.second.name] = pair.to_second(a).astype(b.dtype)
        else:
            values[0][pair.first.name] = pair.to_first(b).astype(a.dtype)
    return values


def judged_parameters(mapping: ParameterMapping) -> Iterator[Judged]:
    """Compare the parameters that the models came with."""
    for pair in mapping.pairs:
        apart = _apart(pair)
        finding: Judgement = "agrees" if _agree(pair, apart) else "port"
        yield Judged("parameters", pair.first.name, False, apart, apart, finding)


def _apart(pair: Pair) -> float:
    first, second = pair.first.value, pair.second.value
    assert first is not None  # "own" without values is refused
    assert second is not None
    return apart_of(first, pair.to_first(second))


def _agree(pair: Pair, apart: float) -> bool:
    # Parameters are converted by moving numbers, at most to the dtype of one of the two: one rounding.
    return apart <= float(jnp.finfo(coarsest((pair.first.dtype, pair.second.dtype))).eps)
