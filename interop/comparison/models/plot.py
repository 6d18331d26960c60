"""A picture of two models: how far each layer is apart, and where the cause begins."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from interop._palette import BLUE, GRID_ALPHA, VERMILLION
from interop.comparison.models.cause import Cause, LayerPair
from jaxclamp._shared.tables import shortened

_LEAST = 1e-18  # stands for no difference at all on the logarithmic scale: below the 1e-16 of float64
_MOST_NAMES = 40  # that fit under the axis without overlap


def figure(pairs: Sequence[LayerPair], cause: Cause | None, title: str) -> Figure:
    """Draw the layers from left to right, and above each how far values and gradients are apart at most.

    Distances are parts of the largest number. Small marks are in float64. The line is what rounding explains in the
    given dtype.
    """
    drawn = Figure(figsize=(max(6.0, 0.16 * len(pairs)), 4.5), layout="constrained")
    axes = drawn.subplots()
    places = range(len(pairs))
    for gradients, colour, marker in ((False, BLUE, "o"), (True, VERMILLION, "^")):
        for in_float64, size in ((False, 28), (True, 8)):
            apart = [max(pair.apart(gradients=gradients, in_float64=in_float64), _LEAST) for pair in pairs]
            name = ("gradients" if gradients else "values") + (", float64" if in_float64 else "")
            axes.scatter(places, apart, s=size, c=colour, marker=marker, label=name, alpha=0.8, linewidths=0)
    axes.plot(places, [max(pair.rounding, _LEAST) for pair in pairs], color="gray", label="rounding explains")
    if cause is not None:
        ends = [end for end in (cause.after, cause.before) if end is not None] or [cause.layer]
        middle = sum(pairs.index(end) for end in ends) / len(ends)
        axes.axvline(middle, color="black", linestyle="--", label="here they diverge")
    step = -(-len(pairs) // _MOST_NAMES)
    axes.set_xticks(places[::step], [shortened(pair.first.name, 24) for pair in pairs[::step]], rotation=90, fontsize=7)
    axes.set_yscale("log")
    axes.set_ylabel("largest difference / largest number")
    axes.grid(alpha=GRID_ALPHA)
    drawn.legend(fontsize=8, loc="outside right upper")
    axes.set_title(title, fontsize=9)
    return drawn
