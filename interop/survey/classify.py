"""What recorded answers follow: a convention, another subgradient, or none."""

from __future__ import annotations

from collections import Counter

import numpy as np
from scipy.optimize import nnls

from interop.survey.records import Cell, Gradient, Mode, Record, choices
from interop.survey.versions import same

FOLLOWED = ("min_norm", "inclusive", "exclusive", "balanced", "another subgradient", "no subgradient")
"""The values of ``ties=``, and what is left."""


def followed(record: Record, op: str, mode: Mode) -> Counter[str]:
    """How many of the answers to an op follow what, of `FOLLOWED`.

    An answer that several conventions explain counts for the one that explains most answers to the op.
    """
    explained = [
        explanations(cell, modes[mode]) for cell, modes in record.answers.items() if cell.op == op and mode in modes
    ]
    total = Counter(name for names in explained for name in names)
    return Counter(max(names, key=lambda name: (total[name], -FOLLOWED.index(name))) for names in explained)


def explanations(cell: Cell, gradient: Gradient) -> list[str]:
    """All of `FOLLOWED` that a gradient in a cell may follow.

    >>> explanations(Cell.of("clamp(x=0, min=0, max=6), x, numbers: torch.clamp"), (0.0,))
    ['min_norm', 'exclusive']
    """
    known = choices()[cell.case]
    names = [convention for convention, other in known.conventions.items() if same(gradient, other)]
    if names:
        return names
    # A subgradient is a mean of the corners: with weights that are not negative, and whose sum is 1.
    means = np.vstack([np.array(known.corners).T, np.ones(len(known.corners))])
    _, distance = nnls(means, np.append(gradient, 1.0))
    return ["another subgradient" if distance < 1e-3 else "no subgradient"]
