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
class ELU(torch.nn.ELU):
    ties: Convention | None
class Hardshrink(torch.nn.Hardshrink):
    ties: Convention | None
class Hardsigmoid(torch.nn.Hardsigmoid):
    ties: Convention | None
class Hardswish(torch.nn.Hardswish):
    ties: Convention | None
class Hardtanh(torch.nn.Hardtanh):
    ties: Convention | None
class HingeEmbeddingLoss(torch.nn.HingeEmbeddingLoss):
    ties: Convention | None
class LeakyReLU(torch.nn.LeakyReLU):
    ties: Convention | None
class MarginRankingLoss(torch.nn.MarginRankingLoss):
    ties: Convention | None
class MaxPool1d(torch.nn.MaxPool1d):
    ties: Convention | None
class MaxPool2d(torch.nn.MaxPool2d):
    ties: Convention | None
class MaxPool3d(torch.nn.MaxPool3d):
    ties: Convention | None
class PReLU(torch.nn.PReLU):
    ties: Convention | None
class ReLU(torch.nn.ReLU):
    ties: Convention | None
class ReLU6(torch.nn.ReLU6):
    ties: Convention | None
class SELU(torch.nn.SELU):
    ties: Convention | None
class Softshrink(torch.nn.Softshrink):
    ties: Convention | None
class Threshold(torch.nn.Threshold):
    ties: Convention | None
class TripletMarginLoss(torch.nn.TripletMarginLoss):
    ties: Convention | None
class TripletMarginWithDistanceLoss(torch.nn.TripletMarginWithDistanceLoss):
    ties: Convention | None
