"""Name the slip behind a difference, if it is one of the commonest of ports."""

import math
import re

from interop.comparison.models.cause import Cause

_MOMENTUM = re.compile(r"\b(?:momentum|decay_rate)=([\d.e-]+)")


def slip_of(cause: Cause, models: tuple[str, str]) -> str:
    """Return the slip in words, or nothing.

    Args:
      cause: where the models first differ.
      models: their names, each with its library, as ``Network (flax 0.12.8)``.
    """
    if cause.is_own_code:
        return ""
    if cause.layer.updates in ((True, False), (False, True)):
        training, evaluating = ("first", "second") if cause.layer.updates[0] else ("second", "first")
        return f"The {training} model is in training mode there, the {evaluating} uses its running averages."
    momenta = [_MOMENTUM.search(layer.settings) for layer in (cause.layer.first, cause.layer.second)]
    of_torch = ["(torch " in model for model in models]
    if cause.parts[0].what == "state" and all(momenta) and any(of_torch) and not all(of_torch):
        text, text_elsewhere = (momenta[of_torch.index(is_torch)][1] for is_torch in (True, False))  # type: ignore[index]
        if math.isclose(float(text) + float(text_elsewhere), 1):
            return ""  # they are as they should be: the statistics differ for another reason
        return (
            "Look at the momentum: in torch it is the share of the new statistics, elsewhere that of the old, so that "
            f"{text} in torch is {1 - float(text):.4g} in the other model."
        )
    return ""
