"""Clamp-family ops for JAX whose gradient at every tie is the subgradient of minimum norm."""

from jaxclamp import kinked, reductions, selection
from jaxclamp._registry import OPS, Op
from jaxclamp._rewrite import min_norm
from jaxclamp._rules import TIES, Ties
from jaxclamp._ties import Influence, Line, TieReport, ties
from jaxclamp.kinked import *
from jaxclamp.reductions import *
from jaxclamp.selection import *

__all__ = ["OPS", "TIES", "Influence", "Line", "Op", "TieReport", "Ties", "min_norm", "ties"]
__all__ += kinked.__all__
__all__ += reductions.__all__
__all__ += selection.__all__
