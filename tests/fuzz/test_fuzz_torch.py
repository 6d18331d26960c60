"""Random compositions of the ops under random transformations of torch, against the definition.

For longer than here: python -m tests.fuzz.fuzzing_torch
"""

import pytest

from tests.fuzz import fuzzing_torch
from tests.fuzz.fuzzing import check, check_what_is_drawn
from tests.support.representatives import parts

pytestmark = pytest.mark.thorough

TORCH_SEEDS = range(120)
COMPILED_SEEDS = range(120, 123)


@parts(TORCH_SEEDS, 30, quick=0)
def test_torch(seeds: range) -> None:
    check(fuzzing_torch.of_torch(seeds), fuzzing_torch.answers_of_torch)


# As torch traces a torch.autograd.Function, it makes an object of it, of which it warns itself.
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_compiled_torch() -> None:
    check(fuzzing_torch.compiled_of_torch(COMPILED_SEEDS), fuzzing_torch.answers_of_compiled_torch)


def test_what_is_drawn() -> None:
    pairs = fuzzing_torch.of_torch(TORCH_SEEDS)
    check_what_is_drawn(pairs, fuzzing_torch.MODES)
    assert {form.dialect for _, form in pairs} == {*fuzzing_torch.DIALECTS}
