# Written by `make tables`.

import torch

from interop._transforms.modules import Conversion as Conversion
from interop._transforms.modules import convert as convert
from jaxclamp import Convention

class AdaptiveMaxPool1d(torch.nn.AdaptiveMaxPool1d):
    ties: Convention | None
class AdaptiveMaxPool2d(torch.nn.AdaptiveMaxPool2d):
    ties: Convention | None
class AdaptiveMaxPool3d(torch.nn.AdaptiveMaxPool3d):
    ties: Convention | None
class CELU(torch.nn.CELU):
    ties: Convention | None
    def __call__(self, input: torch.Tensor) -> torch.Tensor: ...
class ELU(torch.nn.ELU):
    ties: Convention | None
    def __call__(self, input: torch.Tensor) -> torch.Tensor: ...
class Hardshrink(torch.nn.Hardshrink):
    ties: Convention | None
    def __call__(self, input: torch.Tensor) -> torch.Tensor: ...
class Hardsigmoid(torch.nn.Hardsigmoid):
    ties: Convention | None
    def __call__(self, input: torch.Tensor) -> torch.Tensor: ...
class Hardswish(torch.nn.Hardswish):
    ties: Convention | None
    def __call__(self, input: torch.Tensor) -> torch.Tensor: ...
class Hardtanh(torch.nn.Hardtanh):
    ties: Convention | None
    def __call__(self, input: torch.Tensor) -> torch.Tensor: ...
class HingeEmbeddingLoss(torch.nn.HingeEmbeddingLoss):
    ties: Convention | None
    def __call__(self, input: torch.Tensor, target: torch.Tensor) -> torch.Tensor: ...
class LeakyReLU(torch.nn.LeakyReLU):
    ties: Convention | None
    def __call__(self, input: torch.Tensor) -> torch.Tensor: ...
class MarginRankingLoss(torch.nn.MarginRankingLoss):
    ties: Convention | None
    def __call__(self, input1: torch.Tensor, input2: torch.Tensor, target: torch.Tensor) -> torch.Tensor: ...
class MaxPool1d(torch.nn.MaxPool1d):
    ties: Convention | None
class MaxPool2d(torch.nn.MaxPool2d):
    ties: Convention | None
class MaxPool3d(torch.nn.MaxPool3d):
    ties: Convention | None
class PReLU(torch.nn.PReLU):
    ties: Convention | None
    def __call__(self, input: torch.Tensor) -> torch.Tensor: ...
class ReLU(torch.nn.ReLU):
    ties: Convention | None
    def __call__(self, input: torch.Tensor) -> torch.Tensor: ...
class ReLU6(torch.nn.ReLU6):
    ties: Convention | None
    def __call__(self, input: torch.Tensor) -> torch.Tensor: ...
class SELU(torch.nn.SELU):
    ties: Convention | None
    def __call__(self, input: torch.Tensor) -> torch.Tensor: ...
class Softshrink(torch.nn.Softshrink):
    ties: Convention | None
    def __call__(self, input: torch.Tensor) -> torch.Tensor: ...
class Threshold(torch.nn.Threshold):
    ties: Convention | None
    def __call__(self, input: torch.Tensor) -> torch.Tensor: ...
class TripletMarginLoss(torch.nn.TripletMarginLoss):
    ties: Convention | None
    def __call__(self, anchor: torch.Tensor, positive: torch.Tensor, negative: torch.Tensor) -> torch.Tensor: ...
class TripletMarginWithDistanceLoss(torch.nn.TripletMarginWithDistanceLoss):
    ties: Convention | None
    def __call__(self, anchor: torch.Tensor, positive: torch.Tensor, negative: torch.Tensor) -> torch.Tensor: ...
