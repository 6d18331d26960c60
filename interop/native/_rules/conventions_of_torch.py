"""Differentiates the installed torch at every tie to find which conventions its functions follow.

At its bound 0, for example, ``torch.clamp(x, 0., 6.)`` has the gradient 1 up to torch 2.13, so ``FOLLOWED["clamp"]`` is
{"inclusive"}; from 2.14 on the gradient is 0, and it is {"min_norm", "exclusive"}.
"""

from collections.abc import Callable, Mapping, Sequence

import torch

from interop._torch.grad_state import outside_of_modes
from interop._torch.sharding import is_distributed
from interop.native._rules.kinked import kinks_of
from interop.native._rules.selection import select
from jaxclamp import CONVENTIONS, OPS, Convention, Op

InTorch = Callable[..., torch.Tensor]


def _functions_of_numbers() -> dict[str, InTorch]:
    """Map each op of one tensor and numbers to its function in torch, which refuses numbers for other ops."""
    functions = {}
    for op in OPS.values():
        if op.family == "reduction":
            continue
        at, *parameters = op.tie_points[0]
        function = op.counterparts_in("torch")[0].function
        try:
            function(torch.tensor(at), *parameters)
        except TypeError:
            continue
        functions[op.name] = function
    return functions


_IN_TORCH: Mapping[str, InTorch] = outside_of_modes(_functions_of_numbers)
# At 0 torch gives leaky_relu and elu the slope of the piece below. Between the slopes -1 and 1 the least is 0, between
# 2 and 1 it is 1: the piece below has the least for 0 <= slope <= 1 alone. A shrinkage by 0 is x, and torch gives
# it the slope 0 at 0.
_LEFT_OUT: Mapping[str, Callable[[float], bool]] = {
    "leaky_relu": lambda slope: not 0 <= slope <= 1,
    "elu": lambda alpha: not 0 <= alpha <= 1,
    "softshrink": lambda lambd: lambd == 0,
    "hardshrink": lambda lambd: lambd == 0,
}
"""Maps a function to whether a parameter is one for which `interop.native` does not call torch's own function."""


def _followed(name: str) -> frozenset[Convention]:
    """Return the conventions that have the gradient of torch's function of that name at each tie of the op.

    It is the gradient of reverse mode, for a tensor and numbers.
    """
    in_torch, op = _IN_TORCH[name], OPS[name]
    leaves_out = _LEFT_OUT.get(name, lambda parameter: False)
    followed = set(CONVENTIONS if op.has_conventions else ("min_norm",))
    for at, *parameters in op.tie_points:
        if any(parameter is None or leaves_out(parameter) for parameter in parameters):
            continue
        x = torch.tensor(at, dtype=torch.float32, device="cpu", requires_grad=True)
        (gradient,) = torch.autograd.grad(in_torch(x, *parameters), x)
        followed = {ties for ties in followed if torch.equal(gradient, _defined(op, in_torch, x, parameters, ties))}
    return frozenset(followed)


def _defined(op: Op, in_torch: InTorch, x: torch.Tensor, parameters: Sequence[float], ties: Convention) -> torch.Tensor:
    """Return the gradient of the op by x that the convention defines."""
    if op.has_conventions:
        value = select(op.name, lambda x, *_: in_torch(x, *parameters), ties, True, x, *parameters)
        return torch.autograd.grad(value, x)[0]
    return x.new_tensor(dict(kinks_of(op.name, *parameters))[x.item()])


# At import, since the first call may come while a graph is traced, where nothing can be differentiated. It takes 30 ms.
FOLLOWED: Mapping[str, frozenset[Convention]] = outside_of_modes(lambda: {name: _followed(name) for name in _IN_TORCH})
"""Maps the name of a function of torch, of a tensor and numbers, to the conventions that its gradient follows."""


_REFUSES_PARTS = frozenset(("hardshrink", "hardsigmoid", "hardswish", "hardtanh", "relu6", "softshrink"))
"""The functions whose backward pass torch, 2.11 to 2.15, does not have for tensors that lie in several processes."""


def follows(name: str, input: torch.Tensor, ties: Convention = "min_norm", parameter: float | None = None) -> bool:
    """Say whether torch's own function of that name, with this parameter, has the gradient of the convention."""
    if ties not in FOLLOWED[name] or (name in _REFUSES_PARTS and is_distributed(input)):
        return False
    return parameter is None or not _LEFT_OUT[name](parameter)
