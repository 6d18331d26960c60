"""Which of equal elements is ahead after a small step: the order by which choices in torch programs are decided."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from interop._programs.order import place_ahead

INF, NAN = math.inf, math.nan
NUMBERS = list(itertools.product((0.0, 1.0, -INF, NAN), (-INF, -1.0, 0.0, 2.0, INF, NAN)))
"""Values with their tangents."""


def rank(value: float, tangent: float) -> tuple[float, float]:
    """Say by definition how far ahead a number is: NaN before all, and so is a tangent of NaN, as one of infinity."""
    is_nan = math.isnan(value)
    return (math.inf if is_nan else value), (math.inf if math.isnan(tangent) else tangent)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_the_one_ahead_along_an_axis(dim: int, dtype: torch.dtype) -> None:
    """Of all pairs and some triples; of those that are equally far ahead it is the first."""
    lines = [(*pair, NUMBERS[11 * i % 23]) for i, pair in enumerate(itertools.product(NUMBERS, repeat=2))]
    expected = [max(range(3), key=lambda k: (*rank(*line[k]), -k)) for line in lines]
    numbers = torch.tensor(lines, dtype=dtype).reshape(24, 24, 3, 2)  # the axis of a line is 2
    value, tangent = (x.movedim(2, dim).contiguous() for x in numbers.unbind(-1))
    place = place_ahead(value, lambda: tangent, dim)
    assert place.squeeze(dim).flatten().tolist() == expected


@pytest.mark.parametrize(("in_dims", "expected"), [((0, 0), [1, 2]), ((0, None), [1, 2]), ((None, 0), [1, 0])])
def test_batches_of_points_and_of_directions(in_dims: tuple[int | None, int | None], expected: list[int]) -> None:
    value = torch.tensor([[1.0, 1.0, 0.0], [2.0, 2.0, 2.0]])
    tangent = torch.tensor([[1.0, 3.0, 9.0], [0.0, -1.0, 2.0]])
    at = [x if dim == 0 else x[0] for x, dim in zip((value, tangent), in_dims, strict=True)]
    place = torch.func.vmap(lambda value, tangent: place_ahead(value, lambda: tangent, 0), in_dims)(*at)
    assert place.flatten().tolist() == expected


def test_tangents_are_asked_for_at_ties_alone() -> None:
    def late() -> torch.Tensor:
        raise AssertionError

    value = torch.tensor([[1.0, 3.0, 2.0], [0.0, -INF, -1.0]])
    assert place_ahead(value, late, 1).tolist() == [[1], [0]]
    with pytest.raises(AssertionError):
        place_ahead(torch.tensor([[1.0, 1.0, 0.0]]), late, 1)
