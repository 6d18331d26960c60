"""Random programs with many ties, in torch, against differences of their values.

More of them than here: python -m tests.fuzz.random_programs_torch --programs 1000
"""

from tests.fuzz import random_programs_torch
from tests.fuzz.random_programs import PROGRAMS, draw, failures
from tests.fuzz.random_programs_torch import TARGET
from tests.fuzz.random_steps import KINDS
from tests.fuzz.random_steps_torch import SPELLINGS
from tests.support.representatives import parts


@parts(PROGRAMS, 10, quick=60)
def test_torch(seeds: range) -> None:
    assert not (found := failures(seeds, TARGET)), "\n".join(found)


def test_every_step_is_spelled() -> None:
    assert [*SPELLINGS] == [*KINDS]


def test_what_is_drawn() -> None:
    """Every form."""
    forms = [TARGET.form(draw(seed)[0]) for seed in range(200)]
    assert {(form.mode, form.batch) for form in forms} == {
        *((mode, batch) for mode in ("grad", "directional_derivative") for batch in random_programs_torch.BATCHES),
        *(("along", batch) for batch in ("loop", "sum")),
    }
