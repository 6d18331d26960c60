"""Do programs of torch's operators, bindings and functions of many tensors have the derivatives of their values?"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import interop
from jaxclamp.kinked import SELU_ALPHA, SELU_SCALE
from tests.programs.nearby import X, Y, check
from tests.programs.torch_functions import FUNCTIONS

aten = torch.ops.aten
POINT = X.flatten()

PROGRAMS: dict[str, Callable[..., Any]] = {
    "an operator": lambda x: aten.relu(x) - 2 * aten.relu(-x),
    "an overload": lambda x: aten.relu.default(x) - 2 * aten.abs.default(-x),
    "its first argument by name": lambda x: aten.relu(self=x),
    "an overload that overwrites": lambda x: aten.hardsigmoid_.default(x - 3) + aten.relu_(x - 1),
    "a binding": lambda x: torch._C._nn.leaky_relu(x, 0.25) + torch._C._nn.hardswish_(x - 3),
    "an argument at its default": lambda x: aten.elu(x, 2.0, 1, 1) + torch._C._nn.leaky_relu(input=x),
    "selu, as it is decomposed": lambda x: (
        aten.elu(x, SELU_ALPHA, SELU_SCALE) + aten.elu_(-x, SELU_ALPHA, SELU_SCALE, 1)
    ),
    "a number for the reduction": lambda x: (
        aten.l1_loss(x, 0 * x, 2) + torch._C._nn.l1_loss(x, -x) + aten.l1_loss(-x, x, 0)
    ),
    "no number for the reduction": lambda x: (
        aten.l1_loss(x, 0 * x) + torch._C._nn.l1_loss(x, -x, 1) + torch._C._nn.l1_loss(input=x, target=0 * x)
    ),
    "a loss of torch": lambda x: torch.hinge_embedding_loss(x + 1, -torch.ones(12), 1.0, 2),
    "an extremum": lambda x: (
        aten.max.dim(x.reshape(3, 4), 1)[0] + aten.amin(x) + aten.max(x) + aten.max.other(x, -x)[:3]
    ),
    "a sort": lambda x: aten.sort.stable(x, stable=True, dim=0)[0] ** 2,
    "a pool": lambda x: aten.max_pool2d(x.reshape(1, 3, 4), [2, 2], [1, 1]),
    "a pool with indices": lambda x: (pool := aten.adaptive_max_pool2d(x.reshape(1, 3, 4), [3, 2]))[0] + 0 * pool[1],
    "a fractional pool": lambda x: aten.fractional_max_pool2d(
        x.reshape(1, 3, 4), [2, 2], [2, 2], torch.full((1, 1, 2), 0.5, dtype=x.dtype)
    )[0],
    "the derivative of a pool": lambda x: (
        image := x.reshape(1, 3, 4),
        pool := aten.adaptive_max_pool2d(image, [3, 2]),
        aten.adaptive_max_pool2d_backward(pool[0], image, pool[1]).sum(),  # its places jump, the sum does not
    )[-1],
    "a mask": lambda x: x * aten.gt.Scalar(x, 0) - x * aten.le(x, 0) + x * x.relu().to(torch.bool),
    "a mask as a copy": lambda x: x * aten._to_copy(x.relu(), dtype=torch.bool, layout=torch.strided),
    "many": lambda x: sum(torch._foreach_abs([x, x - 1])),
    "many and a number": lambda x: sum(torch._foreach_clamp_min([x, x - 1], 0.0)),
    "many and numbers": lambda x: sum(torch._foreach_clamp_max([x, x - 1], [0.0, 1.0])),
    "many and many": lambda x: sum(torch._foreach_maximum([x, x - 1], other=[-x, 0 * x])),
    "many norms": lambda x: sum(torch._foreach_norm([x, x - 1], 1)) - sum(torch._foreach_norm([x, x - 1])),
    "many that are overwritten": lambda x: torch._foreach_minimum_(many := [1 * x, x - 1], [-x, 0 * x]) and sum(many),
    "an operator of many": lambda x: (many := [1 * x, x - 1], aten._foreach_clamp_max_.Scalar(many, 0.0), sum(many))[2],
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_operators_are_decided(name: str) -> None:
    check(PROGRAMS[name], POINT)


REFUSED: dict[str, tuple[Callable[..., Any], str]] = {
    "a part of a derivative": (lambda x: aten.threshold_backward(x, x, 0), "call torch.threshold, "),
    "a kernel": (lambda x: aten._prelu_kernel(x, x), "call torch.nn.functional.prelu, "),
    "other arguments": (lambda x: aten.elu(x, 1.0, 2.0), "the arguments of torch.nn.functional.elu; call that"),
    "out=": (lambda x: aten.abs.out(x, out=x * 1), "out= has no derivative"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_decided_is_refused(name: str) -> None:
    fun, cure = REFUSED[name]
    with pytest.raises(NotImplementedError, match=cure):
        interop.directional_derivative(fun, POINT, POINT)


def test_what_was_refused_may_be_constant() -> None:
    value, derivative = interop.directional_derivative(lambda x: x + aten.threshold_backward(Y, Y, 0), X, X)
    assert torch.equal(derivative, X)
    assert torch.equal(value, X + Y.clamp(min=0))


GRAPHS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu": lambda x: torch.relu(x) - torch.relu(-x),
    "clamp": lambda x: x.clamp(0, 1),
    "hardswish": torch.nn.functional.hardswish,
    "sort": lambda x: x.sort().values,
    "norm": lambda x: x.norm(),
    "norm by hand": lambda x: (x[:2] * x[:2]).sum().sqrt() + 2 * (x[2] ** 2 + x[3] ** 2) ** 0.5,
    "pool": lambda x: torch.nn.functional.max_pool1d(x[None], 2),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_a_graph_that_was_traced_where_nothing_ties_decides_ties(name: str) -> None:
    def derivative(x: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return interop.directional_derivative(GRAPHS[name], x, v)[1]

    v = torch.tensor([1.0, -2.0, 3.0, -4.0])
    graph = make_fx(derivative)(torch.tensor([0.25, -0.5, 2.0, 4.0]), v)
    for point in ([0.0, 0.0, 0.0, 0.0], [1.0, 1.0, -3.0, 3.0]):
        x = torch.tensor(point)
        assert torch.equal(graph(x, v), derivative(x, v))


UNTRACED = {
    "argmin": "its result is a number for an index",
    "ours": "the ops of interop are operators of their own in a graph",
    "heaviside": "without no_grad, which is not in the graph, torch refuses it",
    "masks in place": "it has heaviside",
    **dict.fromkeys(("lp_pool1d", "lp_pool2d", "lp_pool3d"), "a graph has roots of sums in their place, NaN at 0"),
    **dict.fromkeys(("whether it is 0", "steps at integers"), "Python chooses by numbers, which a graph has not"),
    "det": "below dispatch a graph has an operator of factors, whose forward mode torch has wrong at singular matrices",
    "nn.RNN, dropout": "its random numbers are drawn anew in a graph",
    "linear_cross_entropy": "its chunks are an autograd.Function, which a graph has as constants",
}


REFUSED_BELOW_DISPATCH = (
    "F.prelu",
    "F.prelu one",
    "F.rrelu, in evaluation",
    "F.rrelu_",
    "distances",
    "weight_norm",
)


@pytest.mark.thorough
@pytest.mark.parametrize("pre_dispatch", [True, False])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_graph_of_each_function(name: str, pre_dispatch: bool) -> None:
    """The functions that choose, as the operators that torch makes of them."""
    if name in UNTRACED:
        pytest.skip(UNTRACED[name])
    fun, *inputs = FUNCTIONS[name]
    is_refused = not pre_dispatch and name in REFUSED_BELOW_DISPATCH
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # index_reduce is in beta
        graph = make_fx(lambda *inputs: fun(*inputs), pre_dispatch=pre_dispatch)(*(x.clone() for x in inputs))
        with pytest.raises(NotImplementedError) if is_refused else contextlib.nullcontext():
            check(graph, *inputs, seeds=1)
