"""Random programs with many ties, in torch, against differences of their values.

More of them than here: python -m tests.fuzz programs-torch --programs 1000
"""

import pytest

from tests.fuzz import by_differences_torch
from tests.fuzz.by_differences import PROGRAMS, failures
from tests.fuzz.by_differences_torch import TARGET
from tests.fuzz.programs import draw_program
from tests.fuzz.steps import KINDS
from tests.fuzz.steps_torch import SPELLINGS
from tests.support.representatives import parts


# Torch warns once in a process of index_reduce, and of batching it: the first program that has it would raise.
@pytest.mark.filterwarnings("ignore:index_reduce", "ignore:There is a performance drop:UserWarning")
@parts(PROGRAMS, 10, quick=30)
def test_torch(seeds: range) -> None:
    assert not (found := failures(seeds, TARGET)), "\n".join(found)


def test_every_step_is_spelled() -> None:
    assert [*SPELLINGS] == [*KINDS]


def test_what_is_drawn() -> None:
    """Every form."""
    forms = [TARGET.form(draw_program(seed)[0]) for seed in range(200)]
    assert {(form.mode, form.batch) for form in forms} == {
        *((mode, batch) for mode in ("grad", "directional_derivative") for batch in by_differences_torch.BATCHES),
        *(("along", batch) for batch in ("loop", "sum")),
    }
