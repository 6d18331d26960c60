"""What derivatives of whole torch programs refuse, and the cure that the message names."""

from __future__ import annotations

import contextlib
import functools
import math
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

import interop
from tests.programs.nearby import ZERO


@pytest.mark.parametrize("block", [contextlib.nullcontext(), interop.as_of("torch 2.13")])
@pytest.mark.parametrize("choice", [torch.relu, lambda x: x * torch.div(x, 2, rounding_mode="floor")])
def test_checkpoints_are_refused(
    choice: Callable[[torch.Tensor], torch.Tensor], block: contextlib.AbstractContextManager[Any]
) -> None:
    layer, x = torch.nn.Linear(2, 2), torch.ones(1, 2)
    with interop.along(layer), block:
        loss = checkpoint(lambda x: choice(layer(x)), x, use_reentrant=False).sum()
    with pytest.raises(RuntimeError, match="call the function without a checkpoint"):
        loss.backward()


class WithoutJvp(torch.autograd.Function):
    @staticmethod
    def forward(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, cotangent: torch.Tensor) -> torch.Tensor:
        return cotangent * 2


def _within(fun: Callable[[torch.Tensor], Any]) -> None:
    """Call the function in a block of `along`, with a parameter of two elements."""
    with interop.along(x := torch.nn.Parameter(torch.ones(2))):
        fun(x)


def _within_model(fun: Callable[[torch.nn.Linear], Any]) -> None:
    """The same with a model, whose bias is frozen."""
    model = torch.nn.Linear(1, 1)
    model.bias.requires_grad_(False)
    with interop.along(model):
        fun(model)


BAD: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "no function": (lambda: interop.grad(3), TypeError, "grad: fun is 3"),
    "no function along a direction": (
        lambda: interop.directional_derivative(3, ZERO, ZERO),
        TypeError,
        "directional_derivative: fun is 3",
    ),
    "no function to search": (lambda: interop.subdifferential(3), TypeError, "subdifferential: fun is 3"),
    "a direction within a block": (
        lambda: _within(lambda x: interop.directional_derivative(torch.abs, x, x)),
        RuntimeError,
        "directional_derivative: forward mode is at work already",
    ),
    "a search within a block": (
        lambda: _within(interop.subdifferential(torch.sum)),
        RuntimeError,
        "subdifferential: forward mode is at work already",
    ),
    "both": (
        lambda: interop.grad(torch.abs, direction=ZERO, generator=torch.Generator()),
        ValueError,
        "direction and generator are both given",
    ),
    "integers": (lambda: interop.grad(torch.abs)(torch.tensor(1)), TypeError, "torch.int64"),
    "a number": (lambda: interop.directional_derivative(torch.abs, 1.0, 1.0), TypeError, "float"),
    "shape": (
        lambda: interop.directional_derivative(torch.abs, ZERO, torch.zeros(2)),
        ValueError,
        r"shape torch.Size\(\[2\]\)",
    ),
    "dtype": (lambda: interop.grad(torch.abs, direction=ZERO.double())(ZERO), ValueError, "float64"),
    "NaN for a direction": (
        lambda: interop.grad(torch.abs, direction=torch.tensor(math.nan))(ZERO),
        ValueError,
        "direction has NaN or infinity",
    ),
    "infinity within a vmap": (
        lambda: torch.func.vmap(lambda v: interop.grad(torch.abs, direction=v)(ZERO))(torch.tensor([math.inf])),
        ValueError,
        "direction has NaN or infinity",
    ),
    "a direction of 0": (
        lambda: interop.grad(torch.abs, direction=torch.zeros(()))(ZERO),
        ValueError,
        "grad: direction is 0, which points nowhere; pass other numbers, or no direction",
    ),
    "directions of 0": (
        lambda: interop.along(torch.nn.Linear(1, 1), direction=[torch.zeros(1, 1), torch.zeros(1)]).__enter__(),
        ValueError,
        "along: direction is 0",
    ),
    "a direction of another dtype": (
        lambda: interop.along(torch.nn.Linear(1, 1, bias=False), direction=torch.ones(1, 1).double()).__enter__(),
        ValueError,
        "direction has a tensor of dtype torch.float64; pass one of torch.float32, that of parameters",
    ),
    "a number for a direction": (
        lambda: interop.grad(torch.abs, direction=1.0)(ZERO),
        ValueError,
        "direction has 1.0; pass tensors, of the shapes and dtypes of the argument",
    ),
    "numbers for the direction of parameters": (
        lambda: interop.along(torch.nn.Linear(1, 1, bias=False), direction=1.0).__enter__(),
        ValueError,
        "along: direction has 1.0; pass tensors",
    ),
    **{
        f"a seed for a generator of {call}": (
            lambda derive=derive: derive(generator=1),
            TypeError,
            f"{call}: generator is 1; pass torch.Generator",
        )
        for call, derive in {
            "grad": functools.partial(interop.grad, torch.abs),
            "subdifferential": functools.partial(interop.subdifferential, torch.abs),
            "along": lambda generator: interop.along(torch.nn.Linear(1, 1), generator=generator).__enter__(),
        }.items()
    },
    "a float": (
        lambda: interop.grad(lambda x: x.item())(ZERO),
        RuntimeError,
        r"grad: the result of fun is float; return a scalar tensor, as a sum, and no item\(\)",
    ),
    "no such argument": (lambda: interop.grad(torch.abs, 1)(ZERO), TypeError, "argnums is 1, and the number"),
    "an argument twice": (
        lambda: interop.grad(lambda x, y: x + y, (1, -1))(ZERO, ZERO),
        TypeError,
        r"argnums is \(1, -1\), .* each once",
    ),
    "no arguments": (lambda: interop.subdifferential(torch.abs, ())(ZERO), TypeError, r"argnums is \(\), and the"),
    "no number": (lambda: interop.grad(torch.abs, 1.0)(ZERO), TypeError, "argnums is 1.0, and the number"),
    "by name": (lambda: interop.grad(lambda x: x)(x=ZERO), TypeError, "the number of positional arguments 0"),
    "a dict": (lambda: interop.directional_derivative(len, {"x": ZERO}, {"x": ZERO}), TypeError, "inputs is a dict"),
    "no pair": (lambda: interop.grad(torch.abs, has_aux=True)(ZERO), TypeError, "fun returned Tensor; return a pair"),
    "no pair for the value": (
        lambda: interop.grad_and_value(torch.abs, has_aux=True)(ZERO),
        TypeError,
        "grad_and_value: has_aux=True, and fun returned Tensor",
    ),
    "a weight of another size": (
        lambda: interop.grad(lambda x: torch.nn.functional.l1_loss(x, -x, weight=torch.ones(1)))(torch.ones(2)),
        ValueError,
        "weight and input must have the same size",
    ),
    "a window of padding": (
        lambda: interop.grad(lambda x: torch.nn.functional.max_pool1d(x, 2, 1, 1, 3).sum())(torch.ones(1, 1, 2)),
        NotImplementedError,
        "has padding alone",
    ),
    "structure": (
        lambda: interop.grad(torch.abs, direction=(ZERO,))(ZERO),
        ValueError,
        r"direction has the structure TreeSpec\(tuple, None, \[\*\]\); pass one with that of the argument, \*",
    ),
    "out": (
        lambda: interop.grad(lambda x: torch.maximum(x, x, out=torch.zeros(())))(ZERO),
        NotImplementedError,
        "out= has no derivative",
    ),
    "out, of a pair": (
        torch.no_grad()(lambda: _within(lambda x: torch.max(x, 0, out=(x.new_empty(()), torch.tensor(0))))),
        NotImplementedError,
        "out= has no derivative",
    ),
    "out, of another shape": (
        torch.no_grad()(lambda: _within(lambda x: torch.abs(x, out=x.new_empty(3)))),
        RuntimeError,
        r"output with shape \[3\]",
    ),
    "a tensor of 8 bits": (
        lambda: interop.grad(lambda x: x.float().sum())(torch.ones(2).to(torch.float8_e5m2)),
        TypeError,
        "the argument has a tensor of torch.float8_e5m2, .* convert it in the function",
    ),
    "a model that is converted in the block": (
        lambda: _within(lambda x: torch.nn.ParameterList([x]).double()),
        RuntimeError,
        "a parameter of torch.float32 becomes one of torch.float64 .*; convert the model before the block",
    ),
    "parameters that are replaced in the block": (
        lambda: _within_model(lambda model: model.load_state_dict(model.state_dict(), assign=True)),
        RuntimeError,
        r"weight was made or unfrozen in the block, .* call load_state_dict\(assign=True\)",
    ),
    "parameters that are unfrozen in the block": (
        lambda: _within_model(lambda model: model.bias.requires_grad_()),
        RuntimeError,
        "bias was made or unfrozen in the block",
    ),
    "linearize": (
        lambda: torch.func.linearize(interop.grad(torch.abs), ZERO),
        RuntimeError,
        "grad: forward mode is at work already.*for torch.func.linearize, call torch.func.jvp",
    ),
    "meta": (lambda: interop.grad(torch.sum)(torch.ones(2, device="meta")), TypeError, "argument has a fake tensor"),
    "sparse": (lambda: interop.grad(torch.sum)(torch.eye(2).to_sparse()), TypeError, "tensor that is torch.sparse_coo"),
    "nested": (
        lambda: interop.along(torch.nested.nested_tensor([[1.0]], layout=torch.jagged, requires_grad=True)).__enter__(),
        TypeError,
        "parameters has a tensor that is nested",
    ),
    "fake": (
        lambda: interop.grad(torch.sum)(FakeTensorMode().from_tensor(torch.ones(2))),
        TypeError,
        "argument has a fake tensor",
    ),
    "not a scalar": (lambda: interop.grad(torch.abs)(torch.zeros(2)), RuntimeError, "scalar"),
    "not a tensor": (lambda: interop.grad(lambda x: (x, x))(ZERO), RuntimeError, "the result of fun is tuple"),
    "a complex result": (lambda: interop.grad(lambda x: x * 1j)(ZERO), RuntimeError, "return a real scalar, such as a"),
    "no parameters": (lambda: interop.along(torch.nn.ReLU()).__enter__(), ValueError, "none of the parameters"),
    "no tensors": (lambda: interop.along([1]), TypeError, "one of the parameters is 1"),
    "names and tensors": (
        lambda: interop.along(torch.nn.Linear(9, 9).named_parameters()),
        TypeError,
        r"^along: one of the parameters is \('weight', .{,40}\); pass a module, a tensor or several, as model.par",
    ),
    "of inference mode": (
        lambda: interop.along(torch.inference_mode()(lambda: torch.nn.Linear(1, 1))()).__enter__(),
        TypeError,
        "was made under torch.inference_mode",
    ),
    "neither": (lambda: interop.along(1), TypeError, "along: parameters is 1; pass a module, a tensor or several"),
    "a name": (lambda: interop.along("weight"), TypeError, "along: parameters is 'weight'; pass a module"),
    "too few": (
        lambda: interop.along(torch.nn.Linear(1, 1), direction=[torch.zeros(1, 1)]).__enter__(),
        ValueError,
        "along: parameters that require grad: 2 tensors, direction: 1; pass one for each",
    ),
    "directions": (lambda: interop.subdifferential(torch.abs, directions=0), ValueError, "directions=0"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name: str) -> None:
    call, error, message = BAD[name]
    with pytest.raises(error, match=message):
        call()


def test_complex_numbers_in_nan_to_num_are_left_to_torch() -> None:
    """Torch 2.15 differentiates it, and 2.13 refuses to."""

    def fun(x: torch.Tensor) -> torch.Tensor:
        return torch.complex(x, 2 * x).nan_to_num().abs().sum()

    x = torch.ones(2)
    try:
        expected = torch.func.grad(fun)(x)
    except RuntimeError as error:
        with pytest.raises(RuntimeError, match=re.escape(str(error))):
            interop.grad(fun)(x)
    else:
        assert torch.equal(interop.grad(fun)(x), expected)


def test_a_loss_that_is_not_recorded_gets_no_cure_for_functions() -> None:
    x = torch.zeros((), requires_grad=True)
    with pytest.raises(RuntimeError, match="does not have a grad_fn") as raised, torch.no_grad(), interop.along(x):
        torch.abs(x).backward()
    assert not hasattr(raised.value, "__notes__")
    with pytest.raises(RuntimeError) as raised:
        interop.grad(lambda x: torch.autograd.grad(torch.abs(x.detach()), x)[0])(torch.zeros(()))
    assert "call torch.func.grad there" in raised.value.__notes__[0]


@pytest.mark.parametrize("name", ["grad", "along"])
def test_elements_that_share_memory_name_the_cure(name: str) -> None:
    x = torch.ones(1, requires_grad=True).expand(2)
    with pytest.raises(RuntimeError) as raised:
        interop.grad(torch.sum)(x.detach()) if name == "grad" else interop.along(x).__enter__()
    assert raised.value.__notes__ == [
        f"{name} gives each element a tangent of its own: of an argument whose elements share memory, as of expand(), "
        "pass a clone()."
    ]
    assert interop.grad(torch.sum)(x.detach().clone()).tolist() == [1.0, 1.0]


@pytest.mark.parametrize("put", [lambda y: y.register_hook(torch.neg), torch.Tensor.retain_grad])
def test_hooks_of_tensors_in_a_function_name_the_cure(put: Callable[[torch.Tensor], Any]) -> None:
    def fun(x: torch.Tensor) -> torch.Tensor:
        y = 2 * x
        put(y)
        return y.sum()

    with pytest.raises(RuntimeError) as raised:
        interop.grad(fun)(torch.ones(2))
    assert "call it in a block of along" in raised.value.__notes__[0]
    with interop.along(x := torch.ones(2, requires_grad=True)):
        fun(x).backward()


@pytest.mark.parametrize("derivative", [torch.func.jacfwd, torch.func.hessian])
def test_a_second_level_of_forward_mode_names_the_cure(derivative: Callable[..., Any]) -> None:
    x = torch.zeros(2, requires_grad=True)
    with pytest.raises(RuntimeError, match="Nested forward mode AD") as raised, interop.along(x):
        derivative(torch.relu)(x)
    assert "along takes the one level of forward mode that torch has" in raised.value.__notes__[0]
    with interop.along(x):
        assert torch.func.jacrev(torch.relu)(x).shape == (2, 2)
        torch.func.jacrev(torch.func.jacrev(torch.relu))(x)
    with pytest.raises(RuntimeError, match="Nested forward mode AD") as raised:
        interop.grad(lambda y: interop.along(x).__enter__() or y.sum())(torch.ones(2))
    assert "grad takes the one level" in raised.value.__notes__[0]


def test_parameters_of_a_lazy_module_that_has_not_run() -> None:
    with pytest.raises(ValueError, match="run its lazy module once"), interop.along(torch.nn.LazyLinear(1)):
        pass


def test_functions_without_forward_mode_name_the_cure() -> None:
    with pytest.raises(NotImplementedError) as raised:
        interop.directional_derivative(WithoutJvp.apply, ZERO, ZERO)
    assert "write a jvp" in raised.value.__notes__[0]
    with pytest.raises(NotImplementedError) as raised:
        interop.grad(interop.grad(WithoutJvp.apply))(ZERO)
    assert len(raised.value.__notes__) == 1
    with pytest.raises(NotImplementedError) as raised, interop.along(x := torch.zeros((), requires_grad=True)):
        WithoutJvp.apply(x).sum()
    assert "along needs forward mode" in raised.value.__notes__[0]
    with pytest.raises(NotImplementedError, match="missing the required") as raised:
        interop.grad(torch.nn.Module())(ZERO)
    assert not hasattr(raised.value, "__notes__")
    with pytest.raises(NotImplementedError, match="derivative 0 in forward mode"):
        interop.grad(lambda x: x.scatter_reduce(0, torch.tensor([0, 0]), x, "prod").sum())(torch.ones(2))


@pytest.mark.filterwarnings("ignore:TF32")  # torch asks about Intel's GPUs
def test_the_cures_for_attention_and_lstm() -> None:
    attention, lstm = torch.nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True), torch.nn.LSTM(4, 2)
    x = torch.randn(1, 3, 4, generator=torch.Generator().manual_seed(0))
    gradients = []
    for block in (contextlib.nullcontext, lambda: interop.along([*attention.parameters(), *lstm.parameters()])):
        with block(), sdpa_kernel(SDPBackend.MATH), torch.backends.mkldnn.flags(enabled=False):
            lstm(attention(x))[0].square().sum().backward()
        gradients.append([parameter.grad for parameter in (*attention.parameters(), *lstm.parameters())])
        attention.zero_grad()
        lstm.zero_grad()
    torch.testing.assert_close(*gradients)


@pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace the builtin")  # torch 2.11, of a Generator
@pytest.mark.filterwarnings("ignore:The .grad attribute")  # for which Dynamo asks tensors of torch.func
def test_compiled() -> None:
    """One graph is refused; else Dynamo leaves the call to Python."""

    def fun(x: torch.Tensor) -> torch.Tensor:
        return (x.relu() - (-x).relu()).sum()

    x = torch.zeros(3)
    assert torch.compile(lambda x: interop.grad(fun)(x), backend="eager")(x).tolist() == [1.0, 1.0, 1.0]
    with pytest.raises(Exception, match="cannot run in a compiled function"):
        torch.compile(lambda x: interop.grad(fun)(x), backend="eager", fullgraph=True)(x)
    assert interop.grad(torch.compile(fun, backend="eager"))(x).tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_functions_and_along(backend: str) -> None:
    """Neither works in the other, and both say so, also where Dynamo leaves the block to Python."""
    layer, x = torch.nn.Linear(2, 2), torch.ones(1, 2)

    def step(x: torch.Tensor) -> torch.Tensor:
        with interop.along(layer):
            return layer(x).relu().sum()

    with pytest.raises(
        RuntimeError, match=r"along cannot run in a compiled function; call it outside of torch\.compile"
    ):
        torch.compile(step, backend=backend)(x)
    compiled = torch.compile(lambda x: layer(x).relu().sum(), backend=backend)
    compiled(x)
    for fun in (compiled, lambda x: torch.compile(layer, backend=backend)(x)):
        with interop.along(layer), pytest.raises(RuntimeError, match="call the function that was compiled"):
            fun(x)
