"""`interop.native`: torch's own kernels at every tie, in every mode, by the definition; and around a call."""

import contextlib
import functools
import inspect
import math
import runpy
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import interop
import jaxclamp
from interop import TORCH_OPS
from interop.native import NATIVE
from interop.native._rules import conventions_of_torch
from jaxclamp import OPS
from jaxclamp._shared.tie_cases import cases, definitions, in_form, round_to
from tests.support.representatives import thorough
from tests.torch.natively import DTYPES, OF_OPS, PLAIN, TAKE_TENSORS, WANT_TENSORS, Tensor, gradients_of, own, values


def test_every_op_is_here() -> None:
    assert set(OPS) <= set(NATIVE)
    assert {getattr(jaxclamp, name).__name__ for name in jaxclamp.__all__ if name in TORCH_OPS} <= set(NATIVE)
    assert set(TORCH_OPS) <= set(NATIVE)


@pytest.mark.parametrize("name", PLAIN)
def test_signatures_are_those_of_torch(name: str) -> None:
    """With ``ties`` besides; torch's builtins have no signature to compare with."""
    try:
        theirs = inspect.signature(inspect.unwrap(own(name)))
    except ValueError:
        return
    ours = [p for p in inspect.signature(NATIVE[name]).parameters.values() if p.name != "ties"]
    if not any(p.kind is p.VAR_KEYWORD for p in theirs.parameters.values()):
        assert [(p.name, p.default) for p in ours] == [(p.name, p.default) for p in theirs.parameters.values()]


# At every tie, by the definition, in every mode.

Gradient = Callable[[Callable[..., Tensor], list[Tensor]], tuple[Tensor, ...]]


def reverse(function: Callable[..., Tensor], at: list[Tensor]) -> tuple[Tensor, ...]:
    active = [x.clone().requires_grad_() for x in at]
    return torch.autograd.grad(function(*active), active)


def forward(function: Callable[..., Tensor], at: list[Tensor]) -> tuple[Tensor, ...]:
    """One partial derivative after the other."""
    with forward_ad.dual_level():
        gradients = []
        for index, x in enumerate(at):
            of_x = torch.zeros_like(x)
            for place in range(x.numel()):
                one = torch.zeros_like(x)
                one.view(-1)[place] = 1
                duals = [
                    forward_ad.make_dual(y.clone(), one if i == index else torch.zeros_like(y))
                    for i, y in enumerate(at)
                ]
                tangent = forward_ad.unpack_dual(function(*duals)).tangent
                of_x.view(-1)[place] = 0 if tangent is None else tangent
            gradients.append(of_x)
    return tuple(gradients)


def reverse_of_func(function: Callable[..., Tensor], at: list[Tensor]) -> tuple[Tensor, ...]:
    return torch.func.grad(function, argnums=tuple(range(len(at))))(*at)


def forward_of_func(function: Callable[..., Tensor], at: list[Tensor]) -> tuple[Tensor, ...]:
    return torch.func.jacfwd(function, argnums=tuple(range(len(at))))(*at)


def vmapped(function: Callable[..., Tensor], at: list[Tensor]) -> tuple[Tensor, ...]:
    """The second of a batch of two points."""
    gradient = torch.func.grad(function, argnums=tuple(range(len(at))))
    twice = torch.func.vmap(gradient)(*[torch.stack([x + 1, x]) for x in at])
    return tuple(part[1] for part in twice)


def batched_cotangents(function: Callable[..., Tensor], at: list[Tensor]) -> tuple[Tensor, ...]:
    active = [x.clone().requires_grad_() for x in at]
    y = function(*active)
    found = torch.autograd.grad(y, active, torch.tensor([2.0, 1.0], dtype=y.dtype), is_grads_batched=True)
    return tuple(part[1] for part in found)


def checkpointed(function: Callable[..., Tensor], at: list[Tensor]) -> tuple[Tensor, ...]:
    return reverse(lambda *xs: checkpoint(function, *xs, use_reentrant=False), at)


def again(function: Callable[..., Tensor], at: list[Tensor]) -> tuple[Tensor, ...]:
    """With a graph of the backward pass, of which the derivative is finite."""
    active = [x.clone().requires_grad_() for x in at]
    gradients = torch.autograd.grad(function(*active), active, create_graph=True)
    squares = sum((gradient**2).sum() for gradient in gradients)
    if squares.requires_grad:
        assert all(part.isfinite().all() for part in torch.autograd.grad(squares, active, materialize_grads=True))
    return tuple(gradient.detach() for gradient in gradients)


MODES = (
    reverse, forward, reverse_of_func, forward_of_func, vmapped, batched_cotangents, checkpointed, again
)  # fmt: skip


@functools.cache
def at_ties(name: str, dtype: str) -> list[tuple[dict[str, Any], tuple[str, ...], np.ndarray]]:
    """(arguments, active ones, the gradient by definition)."""
    asked = [(round_to(dtype, given), active, how) for given, active, how in cases(OPS[name])]
    defined = definitions(OPS[name], [(given, active) for given, active, _ in asked])
    return [
        (in_form(given, active, how), active, gradient)
        for (given, active, how), (_, gradient) in zip(asked, defined, strict=True)
    ]


def takes(name: str, given: dict[str, Any]) -> bool:
    """Whether torch's function takes the bounds and parameters in this form: as numbers, or as tensors."""
    kinds = {type(v) for n, v in given.items() if n != "x" and isinstance(v, float | np.ndarray)}
    return kinds <= {np.ndarray} if name in WANT_TENSORS else name in TAKE_TENSORS or kinds <= {float}


def wrong_at_ties(name: str, mode: Gradient, dtypes: Iterable[str]) -> list[str]:
    """The ties at which the gradient is not that of the definition."""
    wrong, count = [], 0
    for dtype in dtypes:
        for given, active, expected in at_ties(name, dtype):
            if not takes(name, given):
                continue
            tensors = {n: torch.tensor(v, dtype=DTYPES[dtype]) for n, v in given.items() if isinstance(v, np.ndarray)}

            def function(*xs: Tensor) -> Tensor:
                of = {**given, **tensors, **dict(zip(active, xs, strict=True))}  # noqa: B023  # called here
                return values(NATIVE[name](*of.values())).sum()

            gradients = mode(function, [tensors[n] for n in active])
            found = np.concatenate([gradient.double().numpy().ravel() for gradient in gradients])
            count += 1
            tolerance = 4 * torch.finfo(DTYPES[dtype]).eps
            if not np.allclose(found, expected, rtol=tolerance, atol=1e-3):
                wrong.append(f"{dtype}, {given}, active {active}: {found}, by definition {expected}")
    assert count
    return wrong


# Of torch's prelu of x without axes.
resizes = pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")


@resizes
@pytest.mark.parametrize(
    ("name", "mode"),
    [
        pytest.param(name, mode, id=f"{name}-{mode.__name__}", marks=[] if mode is forward else thorough(name))
        for name in OF_OPS
        for mode in MODES
    ],
)
def test_definition_at_ties(name: str, mode: Gradient) -> None:
    if (name, mode) == ("hardsigmoid", again):
        with pytest.raises(RuntimeError, match="hardsigmoid_backward is not implemented"):  # torch's own limit
            again(lambda x: NATIVE["hardsigmoid"](x).sum(), [torch.zeros(2)])
        return
    wrong = wrong_at_ties(name, mode, DTYPES if mode in (reverse, forward) else ("float32",))
    assert not wrong, "\n".join(wrong)


# What torch's own functions answer, which is asked when interop.native is imported.

WITH_GRADIENT: dict[Callable[..., Tensor], frozenset[str]] = {
    lambda x: torch.where(x < 0, 0 * x, x): frozenset({"inclusive"}),
    lambda x: torch.where(x > 0, x, 0 * x): frozenset({"min_norm", "exclusive"}),
    lambda x: torch.maximum(x, torch.zeros(())): frozenset({"balanced"}),
    lambda x: 0.25 * x: frozenset(),
}


def test_torch_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(conventions_of_torch.FOLLOWED[name] >= {"min_norm"} for name in ("relu", "hardtanh", "threshold"))
    for own_function, followed in WITH_GRADIENT.items():
        monkeypatch.setitem(conventions_of_torch._IN_TORCH, "relu", own_function)
        assert conventions_of_torch._followed("relu") == followed


@contextlib.contextmanager
def default_float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("context", [
    torch.no_grad, torch.inference_mode, FakeTensorMode, lambda: torch.device("meta"), interop.min_norm,
    lambda: forward_ad.dual_level(), default_float64,
])  # fmt: skip
def test_torch_is_asked_wherever_it_is_imported(context: Callable[[], Any]) -> None:
    with context():
        assert runpy.run_path(conventions_of_torch.__file__)["FOLLOWED"] == conventions_of_torch.FOLLOWED


def test_torch_is_asked_under_a_transformation() -> None:
    def function(x: Tensor) -> Tensor:
        assert runpy.run_path(conventions_of_torch.__file__)["FOLLOWED"] == conventions_of_torch.FOLLOWED
        return x

    torch.func.grad(function)(torch.ones(()))
    torch.func.vmap(function)(torch.ones(2))


def with_another_gradient(own: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return the function with another gradient, but beside 0, where no convention has a say and `bend` asks it."""

    class Another(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, of: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
            ctx.of = of
            ctx.save_for_backward(x)
            return of(x)

        @staticmethod
        def backward(ctx: Any, cotangent: Tensor) -> tuple[None, Tensor]:
            (kept,) = ctx.saved_tensors
            with torch.enable_grad():
                x = kept.detach().requires_grad_()
                (gradient,) = torch.autograd.grad(ctx.of(x), x, cotangent)
            is_beside_0 = kept.abs() == torch.finfo(kept.dtype).tiny
            return None, gradient + torch.where(is_beside_0, 0, cotangent) / 4

    @functools.wraps(own)
    def function(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        another: Callable[..., Tensor] = Another.apply
        return another(lambda x: own(x, *args, **kwargs), x)

    return function


@resizes
@pytest.mark.parametrize("mode", [reverse, forward, forward_of_func], ids=lambda mode: mode.__name__)
def test_definition_at_ties_where_torch_does_not_follow_it(mode: Gradient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each function has a way that does not rest on what torch answers at ties, in reverse mode on none of it.

    Three have none: they are torch's own, whose gradient is right in each version, as `test_definition_at_ties` sees.
    """
    for name, function in conventions_of_torch._IN_TORCH.items():
        monkeypatch.setitem(conventions_of_torch.FOLLOWED, name, frozenset())
        if mode is reverse:
            home = torch if function is getattr(torch, name, None) else functional
            monkeypatch.setattr(home, name, with_another_gradient(function))
    for name in conventions_of_torch.FOLLOWED.keys() & OPS.keys() - {"abs", "celu", "threshold"}:
        wrong = wrong_at_ties(name, mode, ["float32"])
        assert not wrong, "\n".join([name, *wrong])


def test_values_in_forward_mode_where_torch_does_not_follow_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, function in conventions_of_torch._IN_TORCH.items():
        if name in OPS and OPS[name].family == "kinked":
            monkeypatch.setitem(conventions_of_torch.FOLLOWED, name, frozenset())
            for at, *parameters in OPS[name].tie_points:
                x = torch.tensor(at)
                value, _ = torch.func.jvp(lambda x: NATIVE[name](x, *parameters), (x,), (x,))  # noqa: B023  # called here
                assert torch.equal(value, function(x, *parameters)), (name, at, parameters)


# What may happen to a result, and around a call.


def test_tensors_as_parameters() -> None:
    """torch takes one without axes for a number, unless it would have to be differentiated."""
    x = torch.tensor([-1.0, 0.0])
    for name, value in (("leaky_relu", -0.5), ("elu", 2.0), ("hardtanh", -0.5), ("softshrink", 0.0)):
        expected = gradients_of(NATIVE[name], x, [value], 1.0, None)
        assert torch.equal(*gradients_of(NATIVE[name], x, [torch.tensor(value)], 1.0, None), *expected)
        with pytest.raises(TypeError, match=r"must be (a n|N)umber"):
            NATIVE[name](x.clone().requires_grad_(), torch.tensor(value, requires_grad=True))


POOLS: dict[str, Callable[[Tensor], Tensor]] = {
    "max_pool1d": lambda x: NATIVE["max_pool1d"](x[None], 2),
    "max_pool1d, all": lambda x: NATIVE["max_pool1d"](x[None], 6),
    "max_pool2d, axis by axis": lambda x: NATIVE["max_pool2d"](x.reshape(1, 2, 3), 5, 1, 2),
    "adaptive_max_pool1d": lambda x: NATIVE["adaptive_max_pool1d"](x[None], 4),
    "adaptive_max_pool1d, all": lambda x: NATIVE["adaptive_max_pool1d"](x[None], 1),
}
REDUCED: dict[str, Callable[[Tensor], Tensor]] = {
    **POOLS,
    "max_with_indices": lambda x: NATIVE["max_with_indices"](x, 0).values,
    "amax, exclusive": lambda x: NATIVE["amax"](x, ties="exclusive"),
}
SIX = torch.tensor([-1.0, 0.0, 0.0, 3.0, 6.0, 6.0])


@pytest.mark.parametrize("name", REDUCED)
def test_results_may_be_overwritten(name: str) -> None:
    """As those of torch, by a ReLU behind a pool for example."""
    x = SIX.clone().requires_grad_()
    expected = torch.autograd.grad(3 * REDUCED[name](x).sum(), x)[0]
    assert torch.equal(torch.autograd.grad(REDUCED[name](x).mul_(3).sum(), x)[0], expected)


SHARES = {
    "min_norm": [[0.0, 1, 0], [0.5, 0, 0.5], [1 / 3, 1 / 3, 1 / 3]],
    "balanced": [[0.0, 1, 0], [0.5, 0, 0.5], [1 / 3, 1 / 3, 1 / 3]],
    "inclusive": [[0.0, 1, 0], [1, 0, 0], [1, 0, 0]],
    "exclusive": [[0.0, 1, 0], [0, 0, 1], [0, 0.5, 0.5]],
}
"""Of the largest of each row: of one alone, of two, and of three."""


@pytest.mark.parametrize("ties", SHARES)
def test_shares_of_rows(ties: Any) -> None:
    for name, of_axis in (("amax", 1), ("max_with_indices", 1), ("max_pool1d", 3), ("adaptive_max_pool1d", 1)):
        x = torch.tensor([[1.0, 3.0, 2.0], [3.0, 0.0, 3.0], [2.0, 2.0, 2.0]], requires_grad=True)
        (gradient,) = torch.autograd.grad(values(NATIVE[name](x, of_axis, ties=ties)).sum(), x)
        assert torch.equal(gradient, torch.tensor(SHARES[ties])), name


def test_the_input_of_a_maximum_may_be_overwritten() -> None:
    x = SIX.clone().requires_grad_()
    z = 1 * x
    z.sub_(NATIVE["max_with_indices"](z, 0).values)
    assert torch.autograd.grad(z[0], x)[0].tolist() == [1, 0, 0, 0, -0.5, -0.5]


@pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node")  # torch.func.linearize itself
@pytest.mark.parametrize("name", REDUCED)
def test_linearized(name: str) -> None:
    """The outcome is linear, and does not change from call to call."""
    _, pushed = torch.func.linearize(REDUCED[name], SIX)
    tangent = torch.arange(1.0, 7.0)
    expected = torch.func.jvp(REDUCED[name], (SIX,), (tangent,))[1]
    for factor in (1.0, 3.0, 0.0, 1.0):
        torch.testing.assert_close(pushed(factor * tangent), factor * expected)


CURVED_OR_REDUCED: dict[str, Callable[[Tensor], Tensor]] = {
    **REDUCED,
    "elu": lambda x: NATIVE["elu"](x, 2.0),
    "selu": lambda x: NATIVE["selu"](x),
    "leaky_relu": lambda x: NATIVE["leaky_relu"](x, -0.5),
    "maximum": lambda x: NATIVE["maximum"](x, torch.zeros(6)),
    "prelu": lambda x: NATIVE["prelu"](x, torch.full((1,), 0.25)),
    "norm": lambda x: NATIVE["norm"](x.reshape(2, 3), dim=1),
}


@pytest.mark.parametrize("name", CURVED_OR_REDUCED)
def test_forward_mode_over_forward_mode_and_vmap(name: str) -> None:
    function = CURVED_OR_REDUCED[name]

    def summed(x: Tensor) -> Tensor:
        return (function(x + (x - SIX) ** 2) ** 3).sum()  # curved before and behind, with the ties of SIX

    def once_batched(x: Tensor) -> Tensor:
        batched: Tensor = torch.func.vmap(summed)(x.unsqueeze(0))[0]
        return batched

    jacfwd, jacrev = torch.func.jacfwd, torch.func.jacrev
    second = jacrev(jacrev(summed))(SIX)
    for of_once in (summed, once_batched):
        torch.testing.assert_close(jacfwd(jacfwd(of_once))(SIX), second)
    torch.testing.assert_close(jacfwd(jacfwd(jacfwd(summed)))(SIX), jacfwd(jacrev(jacrev(summed)))(SIX))
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(torch.stack([SIX, SIX]), torch.ones(2, 6))
        moved = forward_ad.unpack_dual(torch.func.vmap(function)(dual)).tangent
    torch.testing.assert_close(moved[1], torch.func.jvp(function, (SIX,), (torch.ones(6),))[1])


@pytest.mark.parametrize("name", ["selu", "elu", "clamp_min", "max_pool2d", "leaky_relu"])
def test_what_is_no_tensor_is_refused_by_torch(name: str) -> None:
    rest = {"elu": [2.0], "clamp_min": [0.0], "max_pool2d": [2], "leaky_relu": [-1.0]}.get(name, [])
    with pytest.raises(TypeError):
        NATIVE[name]([1.0], *rest)


@pytest.fixture
def one_process() -> Iterator[None]:
    """A group of processes that is this one alone."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch, as it compiles
@pytest.mark.usefixtures("one_process")
def test_distributed_tensors() -> None:
    """Torch has no derivative of `hardtanh` for them."""
    from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh

    mesh = init_device_mesh("cpu", (1,))
    x = torch.tensor([-1.0, 0.0, 1.0, 0.5])
    for name, rest in {"clamp": (0.0, 1.0), "clamp_min": (0.5,), "hardtanh": (0.0, 1.0), "amax": (0,)}.items():
        expected = gradients_of(NATIVE[name], x, rest, 1.0, None)[0]
        spread = distribute_tensor(x, mesh, [Shard(0)]).requires_grad_()
        NATIVE[name](spread, *rest).sum().backward()
        assert torch.equal(spread.grad.full_tensor(), expected), name
        if name == "amax":
            compiled = torch.compile(NATIVE[name], fullgraph=True, backend="aot_eager")
            (gradient,) = torch.autograd.grad(compiled(spread, *rest).sum(), spread)
            assert torch.equal(gradient.full_tensor(), expected)  # type: ignore[attr-defined]
    module = torch.nn.Hardtanh(0.0, 1.0)
    interop.nn.convert(module)
    (gradient,) = torch.autograd.grad(module(input=spread).sum(), spread)
    assert gradient.full_tensor().tolist() == [0, 0, 0, 1]  # type: ignore[attr-defined]


def test_scalars_of_numpy_as_parameters() -> None:
    x = torch.tensor([-1.0, 0.0])
    assert gradients_of(NATIVE["leaky_relu"], x, [np.float32(-2)], 1.0, None)[0].tolist() == [-2, 0]
    clamp = functools.partial(NATIVE["clamp"], ties="inclusive")
    assert gradients_of(clamp, x, [np.float32(0), np.int64(6)], 1.0, None)[0].tolist() == [0, 1]


@pytest.mark.parametrize(("name", "shape"), [("adaptive_max_pool1d", (1, 9)), ("adaptive_max_pool2d", (1, 2, 3, 3))])
def test_pools_without_windows_are_differentiated_as_little_as_by_torch(name: str, shape: tuple[int, ...]) -> None:
    y = NATIVE[name](torch.ones(shape, requires_grad=True), 0)
    with pytest.raises(RuntimeError, match="Expected grad_output to have non-zero size for non-batch dimensions"):
        y.sum().backward()


@pytest.mark.filterwarnings("ignore:.*MaskedTensor")
def test_an_extremum_of_a_masked_tensor() -> None:
    """It is that of its own kind: masked tensors are compared with those of the same mask alone."""
    data, mask = torch.tensor([[1.0, 3.0, 3.0, 9.0]]), torch.tensor([[True, True, True, False]])
    x = torch.masked.masked_tensor(data, mask, requires_grad=True)
    with interop.min_norm():
        y = x.amax(1)
    y.backward(torch.masked.masked_tensor(torch.ones(1), torch.tensor([True])))
    assert x.grad is not None
    assert x.grad.to_tensor(0.0).tolist() == [[0.0, 0.5, 0.5, 0.0]]


def test_a_bad_tangent_counts_only_where_it_has_weight() -> None:
    x, tangent = torch.tensor([1.0, 3.0, 3.0]), torch.tensor([math.inf, 2.0, 0.0])
    for name in ("amax", "max"):
        assert torch.func.jvp(NATIVE[name], (x,), (tangent,))[1] == 1.0


@pytest.mark.filterwarnings("ignore:.*torch.jit.trace")
def test_a_traced_extremum_is_that_of_torch() -> None:
    """In eager code another function of torch stands for it, which a graph would hold without its gradient."""
    x = torch.ones(2, requires_grad=True)
    traced = torch.jit.trace(lambda x: NATIVE["maximum"](x, torch.zeros(2)), x)
    assert "aten::maximum" in str(traced.graph)


@pytest.mark.parametrize(
    "tensors",
    [
        (torch.ones(2) * 1j, torch.ones(2)),
        (torch.ones(2).to_sparse(), torch.ones(2).double().to_sparse()),
    ],
    ids=["complex", "sparse"],
)
def test_what_torch_refuses_is_refused_as_that_function(tensors: tuple[Tensor, Tensor]) -> None:
    x, y = tensors
    with pytest.raises(NotImplementedError) as theirs:
        torch.clamp_max(x.requires_grad_(), y)
    with pytest.raises(NotImplementedError) as ours:
        NATIVE["clamp_max"](x, y)
    assert str(ours.value) == str(theirs.value)


@pytest.mark.parametrize("window", [(2,), (3, 2, 1), (3, 1, 1)])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_values_of_a_pool_can_be_overwritten(window: tuple[int, ...], memory_format: torch.memory_format) -> None:
    """Behind its Function, and with gradients where they were computed without."""
    x = torch.linspace(-1.0, 1.0, 2 * 8 * 40 * 40).reshape(2, 8, 40, 40).contiguous(memory_format=memory_format)
    leaf, expected = x.clone().requires_grad_(), x.clone().requires_grad_()
    y, z = NATIVE["max_pool2d"](leaf, *window), functional.max_pool2d(expected, *window)
    assert y.stride() == z.stride()
    found = torch.autograd.grad(y.relu_().sum(), leaf)
    assert torch.equal(*found, *torch.autograd.grad(z.relu().sum(), expected))
    with torch.no_grad():
        values = NATIVE["max_pool2d"](x, *window)
    values.mul_(torch.ones((), requires_grad=True))
    assert torch.equal(values, functional.max_pool2d(x, *window))
