"""Random compositions of the ops under random transformations of torch, against the definition.

For longer than here: python -m tests.fuzz ops-torch
"""

import pytest

from tests.fuzz import by_definition_torch
from tests.fuzz.by_definition import check, check_what_is_drawn
from tests.support.representatives import parts

TORCH_SEEDS = range(120)
COMPILED_SEEDS = range(120, 123)


@parts(TORCH_SEEDS, 10, quick=10)
def test_torch(seeds: range) -> None:
    check(by_definition_torch.of_torch(seeds), by_definition_torch.answers_of_torch)


@pytest.mark.thorough
# As torch traces a torch.autograd.Function, it makes an object of it, of which it warns itself.
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_compiled_torch() -> None:
    check(by_definition_torch.compiled_of_torch(COMPILED_SEEDS), by_definition_torch.answers_of_compiled_torch)


def test_what_is_drawn() -> None:
    pairs = by_definition_torch.of_torch(TORCH_SEEDS)
    check_what_is_drawn(pairs, by_definition_torch.MODES)
    assert {form.dialect for _, form in pairs} == {*by_definition_torch.DIALECTS}
