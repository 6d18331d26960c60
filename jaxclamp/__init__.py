"""Clamp-family ops for JAX whose gradient at every tie is the subgradient of minimum norm."""

import importlib
from typing import TYPE_CHECKING

from jaxclamp import kinked, reductions, selection
from jaxclamp._registry import OPS, Op
from jaxclamp._rules import TIES, Ties
from jaxclamp.kinked import *
from jaxclamp.reductions import *
from jaxclamp.selection import *

__all__ = ["OPS", "TIES", "Influence", "Line", "Op", "TieReport", "Ties", "min_norm", "ties"]
__all__ += kinked.__all__
__all__ += reductions.__all__
__all__ += selection.__all__

if TYPE_CHECKING:
    from jaxclamp._rewrite import min_norm
    from jaxclamp._ties import Influence, Line, TieReport, ties

    __version__: str
else:
    _WHEN_USED = {"min_norm": "_rewrite", **dict.fromkeys(["Influence", "Line", "TieReport", "ties"], "_ties")}

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
        globals()[name] = getattr(importlib.import_module(f"jaxclamp.{_WHEN_USED[name]}"), name)
        return globals()[name]

    def __dir__():
        return sorted({*globals(), *_WHEN_USED, "__version__"})
