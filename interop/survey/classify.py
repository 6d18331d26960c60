"""Says what recorded gradients follow: a convention, another subgradient, or none.

At ``maximum(x=0, y=0)`` the gradients nearby are (1, 0) and (0, 1), and the subgradients lie on the line between them.
(0.5, 0.5) follows "min_norm" and "balanced", (1, 0) "inclusive", (0, 1) "exclusive". (0.25, 0.75) follows no
convention, but is a mean of the two gradients: "another subgradient". (0, 0) is no mean of them: "no subgradient".
"""

from collections import Counter

import numpy as np

from interop.survey.records import Cell, FlatGradient, Mode, Record, choices
from interop.survey.versions import same
from jaxclamp._shared.hull import nearest

CLASSES = ("min_norm", "inclusive", "exclusive", "balanced", "another subgradient", "no subgradient")
"""The values of ``ties=``, and what is left."""


def classify(record: Record, op: str, mode: Mode) -> Counter[str]:
    """Count how many of the answers to an op are in each of `CLASSES`.

    An answer that several conventions explain counts for the one that explains most answers to the op.
    """
    explained = [
        explanations(cell, modes[mode]) for cell, modes in record.answers.items() if cell.op == op and mode in modes
    ]
    # At many ties two conventions have the same gradient: which one a framework follows, its other answers tell. If
    # these leave it open, the first of `CLASSES` counts.
    total = Counter(name for names in explained for name in names)
    return Counter(max(names, key=lambda name: (total[name], -CLASSES.index(name))) for names in explained)


def explanations(cell: Cell, gradient: FlatGradient) -> list[str]:
    """List all of `CLASSES` that a gradient in a cell is in.

    >>> explanations(Cell.of("clamp(x=0, min=0, max=6), x, numbers: torch.clamp"), (0.0,))
    ['min_norm', 'exclusive']
    """
    case = choices()[cell.case]
    names = [convention for convention, expected in case.conventions.items() if same(gradient, expected)]
    if names:
        return names
    if not np.isfinite(gradient).all():
        return ["no subgradient"]
    closest, _ = nearest(np.array(case.corners), np.array(gradient))
    # Of all answers the distance is 3e-5 at most, as corners are recorded to five places, or 0.25 at least.
    distance = np.linalg.norm(closest - gradient)
    return ["another subgradient" if distance < 1e-3 else "no subgradient"]
