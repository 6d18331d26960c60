"""Clamp-family ops for JAX with the subgradient of minimum norm at every tie, and true gradients of whole programs."""

import importlib
from typing import TYPE_CHECKING

from jaxclamp._record import OPS, Op
from jaxclamp._rules.conventions import CONVENTIONS, Convention

# In the order of use: OPS, and with it every table, lists the ops in the order of these imports.
from jaxclamp import selection, kinked, reductions, skipping, norms
from jaxclamp.selection import *
from jaxclamp.kinked import *
from jaxclamp.reductions import *
from jaxclamp.skipping import *
from jaxclamp.norms import *

__all__ = [
    "CONVENTIONS",
    "OPS",
    "TIES",
    "Convention",
    "GradientReport",
    "Influence",
    "Line",
    "Op",
    "Subdifferential",
    "TieCounts",
    "TieReport",
    "Ties",
    "UndecidedWarning",
    "Verdict",
    "as_of",
    "check_grads",
    "count_ties",
    "directional_derivative",
    "grad",
    "min_norm",
    "pmax",
    "pmin",
    "subdifferential",
    "ties",
    "value_and_grad",
]
__all__ += selection.__all__
__all__ += kinked.__all__
__all__ += reductions.__all__
__all__ += skipping.__all__
__all__ += norms.__all__

Ties, TIES = Convention, CONVENTIONS  # the names of 0.1

if TYPE_CHECKING:
    from jaxclamp._checks.check_grads import check_grads
    from jaxclamp._shared.verdict import GradientReport, Verdict
    from jaxclamp._programs.gradients import directional_derivative, grad, subdifferential, value_and_grad
    from jaxclamp._shared.subdifferential import Subdifferential
    from jaxclamp.collectives import pmax, pmin
    from jaxclamp._transforms.as_of import as_of
    from jaxclamp._transforms.counting import TieCounts, count_ties
    from jaxclamp._transforms.min_norm import min_norm
    from jaxclamp._shared.tie_report import Influence, Line, TieReport
    from jaxclamp._transforms.ties import ties
    from jaxclamp._transforms.undecided import UndecidedWarning

    __version__: str
else:
    # Maps a name to the module that is imported when the name is first used.
    _WHEN_USED = {
        "as_of": "_transforms.as_of",
        "min_norm": "_transforms.min_norm",
        "ties": "_transforms.ties",
        **dict.fromkeys(["TieCounts", "count_ties"], "_transforms.counting"),
        "UndecidedWarning": "_transforms.undecided",
        **dict.fromkeys(["Influence", "Line", "TieReport"], "_shared.tie_report"),
        **dict.fromkeys(["directional_derivative", "grad", "value_and_grad", "subdifferential"], "_programs.gradients"),
        "Subdifferential": "_shared.subdifferential",
        "check_grads": "_checks.check_grads",
        **dict.fromkeys(["pmax", "pmin"], "collectives"),
        **dict.fromkeys(["GradientReport", "Verdict"], "_shared.verdict"),
    }

    def __getattr__(name):
        if name == "__version__":
            metadata = importlib.import_module("importlib.metadata")
            try:
                return metadata.version("jaxclamp")
            except metadata.PackageNotFoundError as error:
                raise AttributeError("jaxclamp is not installed, and so has no version") from error
        if name not in _WHEN_USED:
            raise AttributeError(f"module 'jaxclamp' has no attribute {name!r}")
        # They need jax.extend, which takes longer to import than all the ops.
        module = importlib.import_module(f"jaxclamp.{_WHEN_USED[name]}")
        globals()[name] = getattr(module, name)  # from now on Python finds it there, and does not ask here
        return globals()[name]

    def __dir__():
        return sorted({*__all__, *(name for name in globals() if name.startswith("__")), "__version__"})
