# Written by `make tables`.

from collections.abc import Callable
from typing import Any

import torch

from interop.native.selection import clamp as clamp
from interop.native.selection import clamp_min as clamp_min
from interop.native.selection import clamp_max as clamp_max
from interop.native.selection import maximum as maximum
from interop.native.selection import minimum as minimum
from interop.native.selection import fmax as fmax
from interop.native.selection import fmin as fmin
from interop.native.selection import relu as relu
from interop.native.selection import relu6 as relu6
from interop.native.selection import hardtanh as hardtanh
from interop.native.kinked import hardsigmoid as hardsigmoid
from interop.native.kinked import abs as abs
from interop.native.kinked import leaky_relu as leaky_relu
from interop.native.kinked import prelu as prelu
from interop.native.kinked import elu as elu
from interop.native.kinked import selu as selu
from interop.native.kinked import celu as celu
from interop.native.kinked import hardswish as hardswish
from interop.native.kinked import softshrink as softshrink
from interop.native.kinked import hardshrink as hardshrink
from interop.native.kinked import threshold as threshold
from interop.native.norms import hypot as hypot
from interop.native.norms import norm as norm
from interop.native.norms import vector_norm as vector_norm
from interop.native.norms import linalg_norm as linalg_norm
from interop.native.losses import normalize as normalize
from interop.native.losses import margin_ranking_loss as margin_ranking_loss
from interop.native.losses import hinge_embedding_loss as hinge_embedding_loss
from interop.native.losses import triplet_margin_loss as triplet_margin_loss
from interop.native.losses import triplet_margin_with_distance_loss as triplet_margin_with_distance_loss
from interop.native.reductions import amax as amax
from interop.native.reductions import amin as amin
from interop.native.reductions import max_with_indices as max_with_indices
from interop.native.reductions import min_with_indices as min_with_indices
from interop.native.reductions import max as max
from interop.native.reductions import min as min
from interop.native.reductions import max_pool1d as max_pool1d
from interop.native.reductions import max_pool2d as max_pool2d
from interop.native.reductions import max_pool3d as max_pool3d
from interop.native.reductions import adaptive_max_pool1d as adaptive_max_pool1d
from interop.native.reductions import adaptive_max_pool2d as adaptive_max_pool2d
from interop.native.reductions import adaptive_max_pool3d as adaptive_max_pool3d
from interop.native.sums_of_exponentials import logsumexp as logsumexp
from interop.native.sums_of_exponentials import logaddexp as logaddexp
from interop.native.selection import Bound
from jaxclamp import Convention

NATIVE: dict[str, Callable[..., Any]]
RIGHT_IN_TORCH: set[Callable[..., Any]]

def clamp_(input: torch.Tensor, min: Bound | None = None, max: Bound | None = None, *, ties: Convention = "min_norm") -> torch.Tensor: ...
def clamp_min_(input: torch.Tensor, min: Bound, *, ties: Convention = "min_norm") -> torch.Tensor: ...
def clamp_max_(input: torch.Tensor, max: Bound, *, ties: Convention = "min_norm") -> torch.Tensor: ...
def relu_(input: torch.Tensor, *, ties: Convention = "min_norm") -> torch.Tensor: ...
def hardtanh_(input: torch.Tensor, min_val: float = -1.0, max_val: float = 1.0, *, ties: Convention = "min_norm") -> torch.Tensor: ...
def abs_(input: torch.Tensor) -> torch.Tensor: ...
def leaky_relu_(input: torch.Tensor, negative_slope: float = 0.01) -> torch.Tensor: ...
def elu_(input: torch.Tensor, alpha: float = 1.0) -> torch.Tensor: ...
def selu_(input: torch.Tensor) -> torch.Tensor: ...
def celu_(input: torch.Tensor, alpha: float = 1.0) -> torch.Tensor: ...
def threshold_(input: torch.Tensor, threshold: float, value: float) -> torch.Tensor: ...
def hypot_(input: torch.Tensor, other: torch.Tensor) -> torch.Tensor: ...

clip = clamp
clip_ = clamp_
hard_tanh = hardtanh
hard_tanh_ = hardtanh_
absolute = abs
absolute_ = abs_
hard_sigmoid = hardsigmoid
hard_swish = hardswish
