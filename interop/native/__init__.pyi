# Written by `make tables`.

from collections.abc import Callable
from typing import Any

from interop.native.elementwise import clamp as clamp
from interop.native.elementwise import clamp_min as clamp_min
from interop.native.elementwise import clamp_max as clamp_max
from interop.native.elementwise import maximum as maximum
from interop.native.elementwise import minimum as minimum
from interop.native.elementwise import fmax as fmax
from interop.native.elementwise import fmin as fmin
from interop.native.elementwise import relu as relu
from interop.native.elementwise import relu6 as relu6
from interop.native.elementwise import hardsigmoid as hardsigmoid
from interop.native.elementwise import hardtanh as hardtanh
from interop.native.elementwise import abs as abs
from interop.native.elementwise import leaky_relu as leaky_relu
from interop.native.elementwise import prelu as prelu
from interop.native.elementwise import elu as elu
from interop.native.elementwise import selu as selu
from interop.native.elementwise import celu as celu
from interop.native.elementwise import hardswish as hardswish
from interop.native.elementwise import softshrink as softshrink
from interop.native.elementwise import hardshrink as hardshrink
from interop.native.elementwise import threshold as threshold
from interop.native.elementwise import clamp_ as clamp_
from interop.native.elementwise import clamp_min_ as clamp_min_
from interop.native.elementwise import clamp_max_ as clamp_max_
from interop.native.elementwise import relu_ as relu_
from interop.native.elementwise import hardtanh_ as hardtanh_
from interop.native.elementwise import abs_ as abs_
from interop.native.elementwise import leaky_relu_ as leaky_relu_
from interop.native.elementwise import elu_ as elu_
from interop.native.elementwise import selu_ as selu_
from interop.native.elementwise import celu_ as celu_
from interop.native.elementwise import threshold_ as threshold_
from interop.native.losses import normalize as normalize
from interop.native.losses import margin_ranking_loss as margin_ranking_loss
from interop.native.losses import hinge_embedding_loss as hinge_embedding_loss
from interop.native.losses import triplet_margin_loss as triplet_margin_loss
from interop.native.losses import triplet_margin_with_distance_loss as triplet_margin_with_distance_loss
from interop.native.reducing import amax as amax
from interop.native.reducing import amin as amin
from interop.native.reducing import max_with_indices as max_with_indices
from interop.native.reducing import min_with_indices as min_with_indices
from interop.native.reducing import max as max
from interop.native.reducing import min as min
from interop.native.reducing import max_pool1d as max_pool1d
from interop.native.reducing import max_pool2d as max_pool2d
from interop.native.reducing import max_pool3d as max_pool3d
from interop.native.reducing import adaptive_max_pool1d as adaptive_max_pool1d
from interop.native.reducing import adaptive_max_pool2d as adaptive_max_pool2d
from interop.native.reducing import adaptive_max_pool3d as adaptive_max_pool3d

NATIVE: dict[str, Callable[..., Any]]
RIGHT_IN_TORCH: set[Callable[..., Any]]

clip = clamp
clip_ = clamp_
hard_tanh = hardtanh
hard_tanh_ = hardtanh_
absolute = abs
absolute_ = abs_
hard_sigmoid = hardsigmoid
hard_swish = hardswish
