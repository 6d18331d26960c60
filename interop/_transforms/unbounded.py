"""Tells which functions have slopes without bound, as the root at 0: there a cotangent of 0 becomes NaN."""

from collections.abc import Callable, Sequence
from typing import Any

from interop._bridge.ops import TORCH_OPS
from interop._torch.forms import functions_named
from interop._torch.private_api import foreach_named
from interop.native import NATIVE


def has_slope_without_bound(function: Callable[..., Any], args: Sequence[Any]) -> bool:
    """Return whether the function has such slopes for these arguments.

    >>> import torch
    >>> [has_slope_without_bound(torch.pow, (torch.ones(1), number)) for number in (0.5, 2)]
    [True, False]
    """
    return function in _UNBOUNDED and not (len(args) == 2 and _is_bounded(function, args[1]))


def _is_bounded(function: Callable[..., Any], number: Any) -> bool:
    """Return whether the slopes are bounded since the second argument is a number: of x / 2 and x ** 2 they are."""
    if not isinstance(number, int | float):
        return False
    name = function.__name__.strip("_")
    return (name in _QUOTIENTS and number != 0) or (name in _POWERS and number >= 1 and float(number).is_integer())


_QUOTIENTS = ("div", "divide", "true_divide", "truediv", "itruediv", "fmod", "remainder")
_POWERS = ("pow", "float_power", "ipow")
# Without bound at a number, as the root at 0, or at infinity, as exp, or where something in them divides by 0.
# fmt: off
_OPERATORS = ("truediv", "rtruediv", "itruediv", "rdiv", "pow", "rpow", "ipow", "mod")
_NAMES = (
    *_QUOTIENTS, *_POWERS, *(f"__{name}__" for name in _OPERATORS), "reciprocal", "sqrt", "rsqrt", "log", "log2",
    "log10", "log1p", "exp", "exp2", "expm1", "sinh", "cosh", "tan", "acos", "asin", "atanh", "acosh", "arccos",
    "arcsin", "arctanh", "arccosh", "atan2", "arctan2", "hypot", "lgamma", "mvlgamma", "digamma", "polygamma",
    "gammaln", "psi", "multigammaln", "erfinv", "ndtri", "log_ndtr", "logit", "xlogy", "xlog1py", "entr", "zeta",
    "logaddexp", "logaddexp2", "logsumexp", "logcumsumexp", "ldexp", "i0", "i1", "erfcx", "gelu",
    "soft_margin_loss", "corrcoef", "vander", "local_response_norm", "softmax", "log_softmax", "softmin",
    "gumbel_softmax", "addcdiv", "prod", "cumprod", "norm", "vector_norm", "matrix_norm", "linalg_norm", "dist",
    "std", "var", "std_mean", "var_mean", "normalize", "cosine_similarity", "pairwise_distance", "renorm",
    "cross_entropy", "binary_cross_entropy", "kl_div", "poisson_nll_loss", "gaussian_nll_loss",
    "scaled_dot_product_attention", "multi_head_attention_forward", "layer_norm", "rms_norm", "group_norm",
    "batch_norm", "instance_norm", "det", "slogdet", "logdet", "inv", "inverse", "pinv", "solve", "cholesky",
    "eigh", "eigvalsh", "svd", "svdvals", "qr", "matrix_exp", "lu", "lu_solve", "inv_ex", "solve_ex", "cholesky_ex",
    "cholesky_solve", "solve_triangular", "triangular_solve", "cond", "nanmean", "lu_factor_ex",
    "matrix_sqrth", "polar",
)
# fmt: on

_UNBOUNDED = frozenset(
    function
    for name in _NAMES
    for function in (
        *functions_named(name),
        *foreach_named(name),
        *foreach_named(f"{name}_"),
        *(ops[name] for ops in (NATIVE, TORCH_OPS) if name in ops),
    )
)
"""The functions whose slopes have no bound."""
