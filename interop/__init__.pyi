# Written by `make tables`.

from collections.abc import Callable, Sequence
from typing import Any, Literal, overload

import torch

from interop import native as native
from interop import nn as nn
from interop._audit import Audit as Audit
from interop._audit import ChangedLine as ChangedLine
from interop._audit import Effect as Effect
from interop._audit import audit as audit
from interop._bridge.arrays import jax_to_torch as jax_to_torch
from interop._bridge.arrays import torch_to_jax as torch_to_jax
from interop._bridge.wrap import wrap_for_torch as wrap_for_torch
from interop._checks.gradcheck import gradcheck as gradcheck
from interop._programs.gradients import along as along
from interop._programs.gradients import directional_derivative as directional_derivative
from interop._programs.gradients import grad as grad
from interop._programs.gradients import subdifferential as subdifferential
from interop._transforms.as_of import as_of as as_of
from interop._transforms.min_norm import min_norm as min_norm
from interop._transforms.ranks import sum_over_ranks as sum_over_ranks
from interop._transforms.ties import influence as influence
from interop._transforms.ties import ties as ties
from interop.comparison.compare import compare as compare
from interop.comparison.comparison import Comparison as Comparison
from interop.comparison.models.compare_models import compare_models as compare_models
from interop.comparison.models.report import ModelComparison as ModelComparison
from interop.comparison.probe import Probe as Probe
from interop.comparison.recording import Recording as Recording
from interop.comparison.recording import record as record
from interop.survey.changes import Changes as Changes
from interop.survey.changes import changes as changes
from jaxclamp import Convention

__version__: str
__all__ = [
    "Audit",
    "ChangedLine",
    "Changes",
    "Comparison",
    "Effect",
    "IN_PLACE_OPS",
    "ModelComparison",
    "Probe",
    "Recording",
    "TORCH_OPS",
    "abs",
    "abs_",
    "absolute",
    "absolute_",
    "along",
    "amax",
    "amin",
    "as_of",
    "audit",
    "celu",
    "celu_",
    "changes",
    "clamp",
    "clamp_",
    "clamp_max",
    "clamp_max_",
    "clamp_min",
    "clamp_min_",
    "clip",
    "clip_",
    "compare",
    "compare_models",
    "directional_derivative",
    "elu",
    "elu_",
    "fmax",
    "fmin",
    "grad",
    "gradcheck",
    "hard_sigmoid",
    "hard_swish",
    "hard_tanh",
    "hardshrink",
    "hardsigmoid",
    "hardswish",
    "hardtanh",
    "hardtanh_",
    "hypot",
    "hypot_",
    "influence",
    "jax_to_torch",
    "leaky_relu",
    "leaky_relu_",
    "max_pool1d",
    "max_pool2d",
    "max_pool3d",
    "max_with_indices",
    "maximum",
    "min_norm",
    "min_with_indices",
    "minimum",
    "native",
    "nn",
    "norm",
    "prelu",
    "record",
    "relu",
    "relu6",
    "relu_",
    "selu",
    "selu_",
    "softshrink",
    "subdifferential",
    "sum_over_ranks",
    "threshold",
    "threshold_",
    "ties",
    "torch_to_jax",
    "wrap_for_torch",
]

TORCH_OPS: dict[str, Callable[..., Any]]
IN_PLACE_OPS: dict[str, Callable[..., Any]]

def clamp(input: torch.Tensor, min: torch.Tensor | float | None = None, max: torch.Tensor | float | None = None, *, ties: Convention = "min_norm", out: torch.Tensor | None = None) -> torch.Tensor: ...
def relu(input: torch.Tensor, inplace: bool = False, *, ties: Convention = "min_norm") -> torch.Tensor: ...
def maximum(input: torch.Tensor, other: torch.Tensor | float, *, ties: Convention = "min_norm", out: torch.Tensor | None = None) -> torch.Tensor: ...
def minimum(input: torch.Tensor, other: torch.Tensor | float, *, ties: Convention = "min_norm", out: torch.Tensor | None = None) -> torch.Tensor: ...
def clamp_min(input: torch.Tensor, min: torch.Tensor | float, *, ties: Convention = "min_norm", out: torch.Tensor | None = None) -> torch.Tensor: ...
def clamp_max(input: torch.Tensor, max: torch.Tensor | float, *, ties: Convention = "min_norm", out: torch.Tensor | None = None) -> torch.Tensor: ...
def relu6(input: torch.Tensor, inplace: bool = False, *, ties: Convention = "min_norm") -> torch.Tensor: ...
def hardtanh(input: torch.Tensor, min_val: torch.Tensor | float = -1.0, max_val: torch.Tensor | float = 1.0, inplace: bool = False, *, ties: Convention = "min_norm") -> torch.Tensor: ...
def abs(input: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor: ...
def leaky_relu(input: torch.Tensor, negative_slope: torch.Tensor | float = 0.01, inplace: bool = False) -> torch.Tensor: ...
def prelu(input: torch.Tensor, weight: torch.Tensor | float) -> torch.Tensor: ...
def elu(input: torch.Tensor, alpha: torch.Tensor | float = 1.0, inplace: bool = False) -> torch.Tensor: ...
def selu(input: torch.Tensor, inplace: bool = False) -> torch.Tensor: ...
def celu(input: torch.Tensor, alpha: torch.Tensor | float = 1.0, inplace: bool = False) -> torch.Tensor: ...
def hardsigmoid(input: torch.Tensor, inplace: bool = False, *, ties: Convention = "min_norm") -> torch.Tensor: ...
def hardswish(input: torch.Tensor, inplace: bool = False) -> torch.Tensor: ...
def softshrink(input: torch.Tensor, lambd: torch.Tensor | float = 0.5, *, out: torch.Tensor | None = None) -> torch.Tensor: ...
def hardshrink(input: torch.Tensor, lambd: torch.Tensor | float = 0.5, *, out: torch.Tensor | None = None) -> torch.Tensor: ...
def threshold(input: torch.Tensor, threshold: torch.Tensor | float, value: torch.Tensor | float, inplace: bool = False, *, out: torch.Tensor | None = None) -> torch.Tensor: ...
def amax(input: torch.Tensor, dim: int | Sequence[int] | None = None, keepdim: bool = False, *, ties: Convention = "min_norm", out: torch.Tensor | None = None) -> torch.Tensor: ...
def amin(input: torch.Tensor, dim: int | Sequence[int] | None = None, keepdim: bool = False, *, ties: Convention = "min_norm", out: torch.Tensor | None = None) -> torch.Tensor: ...
def max_with_indices(input: torch.Tensor, dim: int, keepdim: bool = False, *, ties: Convention = "min_norm", out: tuple[torch.Tensor, torch.Tensor] | None = None) -> tuple[torch.Tensor, torch.Tensor]: ...
def min_with_indices(input: torch.Tensor, dim: int, keepdim: bool = False, *, ties: Convention = "min_norm", out: tuple[torch.Tensor, torch.Tensor] | None = None) -> tuple[torch.Tensor, torch.Tensor]: ...
@overload
def max_pool1d(input: torch.Tensor, kernel_size: int, stride: int | None = None, padding: int = 0, dilation: int = 1, ceil_mode: bool = False, return_indices: Literal[False] = False, *, ties: Convention = "min_norm") -> torch.Tensor: ...
@overload
def max_pool1d(input: torch.Tensor, kernel_size: int, stride: int | None = None, padding: int = 0, dilation: int = 1, ceil_mode: bool = False, *, return_indices: Literal[True], ties: Convention = "min_norm") -> tuple[torch.Tensor, torch.Tensor]: ...
@overload
def max_pool2d(input: torch.Tensor, kernel_size: int | Sequence[int], stride: int | Sequence[int] | None = None, padding: int | Sequence[int] = 0, dilation: int | Sequence[int] = 1, ceil_mode: bool = False, return_indices: Literal[False] = False, *, ties: Convention = "min_norm") -> torch.Tensor: ...
@overload
def max_pool2d(input: torch.Tensor, kernel_size: int | Sequence[int], stride: int | Sequence[int] | None = None, padding: int | Sequence[int] = 0, dilation: int | Sequence[int] = 1, ceil_mode: bool = False, *, return_indices: Literal[True], ties: Convention = "min_norm") -> tuple[torch.Tensor, torch.Tensor]: ...
@overload
def max_pool3d(input: torch.Tensor, kernel_size: int | Sequence[int], stride: int | Sequence[int] | None = None, padding: int | Sequence[int] = 0, dilation: int | Sequence[int] = 1, ceil_mode: bool = False, return_indices: Literal[False] = False, *, ties: Convention = "min_norm") -> torch.Tensor: ...
@overload
def max_pool3d(input: torch.Tensor, kernel_size: int | Sequence[int], stride: int | Sequence[int] | None = None, padding: int | Sequence[int] = 0, dilation: int | Sequence[int] = 1, ceil_mode: bool = False, *, return_indices: Literal[True], ties: Convention = "min_norm") -> tuple[torch.Tensor, torch.Tensor]: ...
def fmax(input: torch.Tensor, other: torch.Tensor | float, *, ties: Convention = "min_norm", out: torch.Tensor | None = None) -> torch.Tensor: ...
def fmin(input: torch.Tensor, other: torch.Tensor | float, *, ties: Convention = "min_norm", out: torch.Tensor | None = None) -> torch.Tensor: ...
def norm(input: torch.Tensor, p: float | str = 2, dim: int | Sequence[int] | None = None, keepdim: bool = False, *, dtype: torch.dtype | None = None, out: torch.Tensor | None = None) -> torch.Tensor: ...
def hypot(input: torch.Tensor, other: torch.Tensor | float, *, out: torch.Tensor | None = None) -> torch.Tensor: ...
def clamp_(input: torch.Tensor, min: torch.Tensor | float | None = None, max: torch.Tensor | float | None = None, *, ties: Convention = "min_norm") -> torch.Tensor: ...
def clip_(input: torch.Tensor, min: torch.Tensor | float | None = None, max: torch.Tensor | float | None = None, *, ties: Convention = "min_norm") -> torch.Tensor: ...
def relu_(input: torch.Tensor, *, ties: Convention = "min_norm") -> torch.Tensor: ...
def clamp_min_(input: torch.Tensor, min: torch.Tensor | float, *, ties: Convention = "min_norm") -> torch.Tensor: ...
def clamp_max_(input: torch.Tensor, max: torch.Tensor | float, *, ties: Convention = "min_norm") -> torch.Tensor: ...
def hardtanh_(input: torch.Tensor, min_val: torch.Tensor | float = -1.0, max_val: torch.Tensor | float = 1.0, *, ties: Convention = "min_norm") -> torch.Tensor: ...
def abs_(input: torch.Tensor) -> torch.Tensor: ...
def absolute_(input: torch.Tensor) -> torch.Tensor: ...
def leaky_relu_(input: torch.Tensor, negative_slope: torch.Tensor | float = 0.01) -> torch.Tensor: ...
def elu_(input: torch.Tensor, alpha: torch.Tensor | float = 1.0) -> torch.Tensor: ...
def selu_(input: torch.Tensor) -> torch.Tensor: ...
def celu_(input: torch.Tensor, alpha: torch.Tensor | float = 1.0) -> torch.Tensor: ...
def threshold_(input: torch.Tensor, threshold: torch.Tensor | float, value: torch.Tensor | float) -> torch.Tensor: ...
def hypot_(input: torch.Tensor, other: torch.Tensor | float) -> torch.Tensor: ...

clip = clamp
hard_tanh = hardtanh
absolute = abs
hard_sigmoid = hardsigmoid
hard_swish = hardswish
