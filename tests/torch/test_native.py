"""`interop.native`: torch's own kernels with the gradients of jaxclamp.

They are asked at every tie, by the definition; at special values, beside torch's own values and the programs of JAX;
and in windows, beside a count of their tied elements.
"""

import functools
import inspect
import itertools
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
from jaxclamp import CONVENTIONS, OPS
from jaxclamp._shared.tie_cases import cases, definitions, in_form, round_to
from tests.support.calls import of_aminmax
from tests.support.representatives import thorough

Tensor = torch.Tensor
DTYPES = {name: getattr(torch, name) for name in ("float32", "float64", "bfloat16", "float16")}
PLAIN = [name for name in NATIVE if not name.endswith("_")]
OF_OPS = [name for name in PLAIN if name in OPS]
HOMES = (torch, functional, torch.Tensor)


def own(name: str) -> Callable[..., Any]:
    """The function of torch of that name."""
    known = NATIVE[name].__name__.removesuffix("_with_indices")
    return next(getattr(home, known) for home in HOMES if hasattr(home, known))


def values(result: Any) -> Tensor:
    """The values of a result that may have indices too."""
    return result[0] if isinstance(result, tuple) else result


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


TAKE_TENSORS = {"clamp", "clamp_min", "clamp_max"}
WANT_TENSORS = {"maximum", "minimum", "fmax", "fmin", "prelu"}


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
        monkeypatch.setitem(conventions_of_torch._OWN, "relu", own_function)
        assert conventions_of_torch._asked("relu") == followed


@pytest.mark.parametrize("context", [
    torch.no_grad, torch.inference_mode, FakeTensorMode, lambda: torch.device("meta"), interop.min_norm,
    lambda: forward_ad.dual_level(),
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
    @functools.wraps(own)
    def function(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return own(x, *args, **kwargs) + (x - x.detach()).sum() / 4

    return function


@resizes
@pytest.mark.parametrize("mode", [reverse, forward, forward_of_func], ids=lambda mode: mode.__name__)
def test_definition_at_ties_where_torch_does_not_follow_it(mode: Gradient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each function has a way that does not rest on what torch answers at ties, in reverse mode on none of it."""
    for name, function in conventions_of_torch._OWN.items():
        monkeypatch.setitem(conventions_of_torch.FOLLOWED, name, frozenset())
        if mode is reverse:
            home = torch if function is getattr(torch, name, None) else functional
            monkeypatch.setattr(home, name, with_another_gradient(function))
    for name in conventions_of_torch.FOLLOWED.keys() & OPS.keys():
        wrong = wrong_at_ties(name, mode, ["float32"])
        assert not wrong, "\n".join([name, *wrong])


def test_values_in_forward_mode_where_torch_does_not_follow_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, function in conventions_of_torch._OWN.items():
        if name in OPS and OPS[name].family == "kinked":
            monkeypatch.setitem(conventions_of_torch.FOLLOWED, name, frozenset())
            for at, *parameters in OPS[name].tie_points:
                x = torch.tensor(at)
                value, _ = torch.func.jvp(lambda x: NATIVE[name](x, *parameters), (x,), (x,))  # noqa: B023  # called here
                assert torch.equal(value, function(x, *parameters)), (name, at, parameters)


# At special values: torch's own values, and the gradients of the programs of JAX.

NUMBERS = (-math.inf, -7.0, -6.0, -3.0, -1.0, -0.5, -0.0, 0.0, 0.5, 1.0, 3.0, 6.0, 7.0, math.inf, math.nan)
KINKS = (-6.0, -3.0, -1.0, 0.5, 1.0, 3.0, 6.0)
"""Those of the numbers whose neighbours are no subnormal numbers, which XLA takes for 0."""
HAVE_A_TENSOR = {"maximum", "minimum", "fmax", "fmin"}


def special(dtype: torch.dtype) -> Tensor:
    """The numbers, and the neighbours of the kinks."""
    kinks = torch.tensor(KINKS, dtype=dtype)
    far = torch.full_like(kinks, math.inf)
    return torch.cat([torch.tensor(NUMBERS, dtype=dtype), torch.nextafter(kinks, far), torch.nextafter(kinks, -far)])


def further_arguments(name: str, x: Tensor) -> Iterator[list[Any]]:
    """The arguments beside x: as numbers, as tensors, and as tensors that are differentiated."""

    def like_x(value: float | None, active: bool) -> Tensor | None:
        return None if value is None else torch.full_like(x, value).requires_grad_(active)

    for tie in dict.fromkeys(tie[1:] for tie in OPS[name].tie_points):
        if name not in WANT_TENSORS:
            yield list(tie)
        if name in TAKE_TENSORS | HAVE_A_TENSOR:
            yield from ([like_x(value, active) for value in tie] for active in (False, True))
        if name == "prelu":
            yield from ([torch.tensor(tie, dtype=x.dtype, requires_grad=active)] for active in (False, True))
    if name in HAVE_A_TENSOR:
        yield from ([like_x(math.nan, active)] for active in (False, True))


def at_special_values(name: str, dtype: torch.dtype) -> Iterator[tuple[Tensor, list[Any]]]:
    x = special(dtype)
    if OPS[name].family == "reduction":
        rolled = torch.stack([x.roll(shift) for shift in range(12)])
        axes: list[Any] = [2 if "3d" in name else 4] if "pool" in name else [1]
        yield torch.stack([rolled] * 2)[None] if "3d" in name else rolled[None], axes
    else:
        yield from ((x, given) for given in further_arguments(name, x))


def bits(x: Tensor) -> Tensor:
    """Where NaN is NaN: of its many forms any will do."""
    known = torch.where(x.isnan(), math.nan, x.detach()).contiguous()
    return known.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()])


@pytest.mark.parametrize("name", OF_OPS)
def test_values_are_those_of_torch_to_the_bit(name: str) -> None:
    for x, given in itertools.chain(*(at_special_values(name, dtype) for dtype in DTYPES.values())):
        for ties in CONVENTIONS if OPS[name].has_conventions else (None,):
            active = x.clone().requires_grad_()
            found = NATIVE[name](active, *given, **({"ties": ties} if ties else {}))
            expected = own(name)(x, *given)
            assert torch.equal(bits(values(found)), bits(values(expected))), (x.dtype, given, ties)
            if isinstance(expected, tuple):
                assert torch.equal(found[1], expected[1]), (x.dtype, given, ties)


CURVED = {"elu", "selu", "celu", "hardswish", "hardsigmoid", "prelu"}
"""Those whose slopes are computed, so that two libraries round differently."""
TORCH_S_AT_NAN = {
    "relu6", "hardtanh", "hardsigmoid", "elu", "celu", "selu", "softshrink", "hardshrink", "hardswish", "clamp",
    "clamp_min", "clamp_max", "leaky_relu", "threshold", "abs", "relu",
}  # fmt: skip
"""Those that are torch's own functions, whose derivatives at NaN differ even between the parts of one tensor."""


@pytest.mark.parametrize(
    "dtype", ["float32", *(pytest.param(dtype, marks=pytest.mark.thorough) for dtype in DTYPES if dtype != "float32")]
)
@pytest.mark.parametrize("name", OF_OPS)
def test_gradients_are_those_of_jax(name: str, dtype: str) -> None:
    """Under every convention, for the cotangent 0 too; each further dtype under min_norm alone."""
    wrong = []
    for x, given in at_special_values(name, DTYPES[dtype]):
        for ties in CONVENTIONS if OPS[name].has_conventions and dtype == "float32" else (None,):
            for cotangent in (1.0, -2.0, 0.0):
                found, expected = (
                    gradients_of(functions[name], x, given, cotangent, ties) for functions in (NATIVE, TORCH_OPS)
                )
                tolerance = 8 * torch.finfo(x.dtype).eps if name in CURVED or x.dim() > 1 else 0
                if name == "hardsigmoid":  # torch has 1/6 in float32 only
                    tolerance = max(tolerance, torch.finfo(torch.float32).eps)
                for index, (one, other) in enumerate(zip(found, expected, strict=True)):
                    same = torch.isclose(one, other, rtol=tolerance, atol=2 * tolerance, equal_nan=True)
                    if index == 0:
                        same |= differs_at_nan(name, ties, x)
                    if not same.all():
                        pairs = list(zip(one[~same].tolist(), other[~same].tolist(), strict=True))
                        wrong.append(f"{x.dtype}, {given}, {ties}, {cotangent}: (ours, JAX's) {pairs}")
    assert not wrong, "\n".join(wrong)


def differs_at_nan(name: str, ties: str | None, x: Tensor) -> Tensor:
    """Where torch's own function answers, and its gradient with NaN is not that of jaxclamp."""
    unknown = x.isnan()
    if "pool" in name and ties == "inclusive":  # torch takes the last NaN of a window
        return unknown.any().expand_as(x)
    if name in ("amax", "amin"):
        return unknown.any(1, keepdim=True).expand_as(x)
    return unknown & (name in TORCH_S_AT_NAN)


def gradients_of(
    function: Callable[..., Any], x: Tensor, given: list[Any], cotangent: float, ties: str | None
) -> tuple[Tensor, ...]:
    x = x.clone().requires_grad_()
    active = [x] + [value for value in given if isinstance(value, Tensor) and value.requires_grad]
    y = values(function(x, *given, **({"ties": ties} if ties else {})))
    return torch.autograd.grad(y, active, torch.full_like(y, cotangent), materialize_grads=True)


@pytest.mark.parametrize("cotangent", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "name", ["clamp", "clamp_min", "clamp_max", "maximum", "relu", "hardtanh", "amax", "amin", "max", "max_pool1d"]
)
def test_bad_cotangents_reach_only_what_has_weight(name: str, dtype: str, cotangent: float) -> None:
    x = torch.tensor([-2.0, -1.0, 0.0, 0.5, 1.0, 2.0], dtype=DTYPES[dtype])
    given = {
        "clamp": (-1.0, 1.0), "clamp_min": (0.0,), "clamp_max": (0.0,), "maximum": (torch.zeros_like(x),), "relu": (),
        "hardtanh": (), "amax": (), "amin": (0,), "max": (), "max_pool1d": (3,),
    }[name]  # fmt: skip
    x = x[None] if "pool" in name else x
    (clean,) = gradients_of(NATIVE[name], x, [*given], 1.0, None)
    (found,) = gradients_of(NATIVE[name], x, [*given], cotangent, None)
    assert torch.equal(found.isfinite(), clean == 0)
    assert torch.equal(found[clean == 0], clean[clean == 0])


# In windows and along axes, by counting.


def tied_shares(values: np.ndarray) -> np.ndarray:
    """What each element of a window gets: the tied ones share."""
    tied = values == values.max()
    return tied / tied.sum()


WINDOWS = [
    (2, None, 0, 1, False), (3, 2, 1, 1, False), (3, 1, 0, 1, False), (3, 2, 1, 1, True), (2, 1, 0, 2, False),
    (2, 3, 0, 1, False), (4, 2, 2, 1, True), (5, 1, 2, 1, False), (2, 4, 0, 3, False), (2, 4, 1, 1, False),
    (2, 2, 0, 1, True),
]  # fmt: skip


@pytest.fixture(params=[False, True], ids=["by slices", "by reads"])
def slices_or_reads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What shares in eager code, and what shares in a compiled program."""
    if request.param:
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)


def gradient_and_transposed(y: Tensor, x: Tensor, cotangent: Tensor) -> Tensor:
    """The gradient along ``cotangent``, whose own derivative is asked too: what that spreads, this gathers."""
    cotangent.requires_grad_()
    (gradient,) = torch.autograd.grad(y, x, cotangent, create_graph=True)
    vector = torch.arange(1, x.numel() + 1, dtype=x.dtype).reshape(x.shape)
    (gathered,) = torch.autograd.grad(gradient, cotangent, vector)
    torch.testing.assert_close((gathered * cotangent).sum(), (vector * gradient).sum())
    return gradient.detach()


@pytest.mark.usefixtures("slices_or_reads")
@pytest.mark.parametrize("window", WINDOWS, ids=str)
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_pools_share_by_count(dims: int, window: tuple[Any, ...]) -> None:
    size, stride, padding, dilation, _ = window
    stride = stride or size
    numbers = np.random.default_rng(dims)
    x = numbers.integers(-2, 3, (2, 2, *(7, 6, 5)[:dims])).astype(np.float64)
    active = torch.tensor(x, requires_grad=True)
    y = getattr(functional, f"max_pool{dims}d")(torch.tensor(x), *window)
    cotangent = numbers.integers(-3, 4, y.shape).astype(np.float64)
    expected = np.zeros_like(x)
    for place in np.ndindex(*y.shape):
        along = [
            [
                start + step * dilation
                for start in (index * stride - padding,)
                for step in range(size)
                if 0 <= start + step * dilation < length
            ]
            for index, length in zip(place[2:], x.shape[2:], strict=True)
        ]
        window_of_place = np.ix_([place[0]], [place[1]], *along)
        expected[window_of_place] += cotangent[place] * tied_shares(x[window_of_place])
    pooled = NATIVE[f"max_pool{dims}d"](active, *window)
    assert torch.equal(pooled, y)
    found = gradient_and_transposed(pooled, active, torch.tensor(cotangent))
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_a_large_window_with_nan_and_infinities(compiled: bool) -> None:
    """It is taken axis by axis, which the program of JAX is not."""
    numbers = torch.Generator().manual_seed(0)
    x = torch.randint(-2, 3, (2, 2, 9, 8), generator=numbers).float()
    x[0, 0, 3, 3], x[0, 1, 2, 2:4], x[1, 0], x[1, 1, 4, 4:6] = torch.nan, torch.inf, -torch.inf, torch.nan
    x.requires_grad_()
    cotangent = torch.randint(-3, 4, x.shape, generator=numbers).float()
    cotangent[0, 0, 0, 0] = torch.inf

    def gradient(pool: Callable[..., Tensor]) -> Tensor:
        return torch.autograd.grad(pool(x, 5, 1, 2), x, cotangent)[0]

    ours = NATIVE["max_pool2d"]
    found = gradient(torch.compile(ours, fullgraph=True, backend="aot_eager") if compiled else ours)
    torch.testing.assert_close(found, gradient(TORCH_OPS["max_pool2d"]), equal_nan=True)


@pytest.mark.usefixtures("slices_or_reads")
@pytest.mark.parametrize("counts", [3, 4, 1, 9], ids="to_{}".format)
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_adaptive_pools_share_by_count(dims: int, counts: int) -> None:
    """7 and 5 elements in windows of different sizes, 6 in equal ones; 9 windows have elements in common."""
    numbers = np.random.default_rng(dims)
    x = numbers.integers(-1, 2, (2, 3, *(7, 6, 5)[:dims])).astype(np.float64)
    active = torch.tensor(x, requires_grad=True)
    y, indices = NATIVE[f"adaptive_max_pool{dims}d"](active, counts, return_indices=True)
    own_y, own_indices = getattr(functional, f"adaptive_max_pool{dims}d")(torch.tensor(x), counts, True)
    assert torch.equal(y, own_y)
    assert torch.equal(indices, own_indices)
    cotangent = numbers.integers(-3, 4, y.shape).astype(np.float64)
    expected = np.zeros_like(x)
    for place in np.ndindex(*y.shape):
        along = [
            range(index * length // counts, -(-(index + 1) * length // counts))
            for index, length in zip(place[2:], x.shape[2:], strict=True)
        ]
        window_of_place = np.ix_([place[0]], [place[1]], *along)
        expected[window_of_place] += cotangent[place] * tied_shares(x[window_of_place])
    found = gradient_and_transposed(y, active, torch.tensor(cotangent))
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("axis", [0, 1, 2, -1])
@pytest.mark.parametrize("name", ["amax", "max_with_indices", "max"])
def test_reductions_share_by_count(name: str, axis: int, keepdim: bool) -> None:
    x = np.random.default_rng(1).integers(-1, 2, (3, 4, 5)).astype(np.float64)
    active = torch.tensor(x, requires_grad=True)
    y = values(NATIVE[name](active, axis, keepdim))
    (found,) = torch.autograd.grad(y.sum(), active)
    np.testing.assert_allclose(found.numpy(), np.apply_along_axis(tied_shares, axis, x))


# The functions that clamp on the way.

ANCHOR, POSITIVE, NEGATIVE = (
    torch.tensor(rows) for rows in ([[0.0, 1.0], [2.0, 2.0]], [[3.0, 1.0], [2.0, 1.0]], [[0.0, 5.0], [0.0, 2.0]])
)
LOSSES: dict[str, tuple[list[Tensor], dict[str, Any], int]] = {
    "margin_ranking_loss": (
        [torch.tensor([1.0, 2.0, 3.0]), torch.tensor([2.0, 1.0, 2.0]), torch.tensor([1.0, -1.0, 1.0])],
        {"margin": 0.7},
        2,
    ),
    "hinge_embedding_loss": ([torch.tensor([1.0, 0.5, 2.0]), torch.tensor([-1.0, -1.0, 1.0])], {"margin": 0.7}, 1),
    "triplet_margin_loss": ([ANCHOR, POSITIVE, NEGATIVE], {"margin": 0.7}, 3),
    "triplet_margin_with_distance_loss": ([ANCHOR, POSITIVE, NEGATIVE], {"margin": 0.7, "swap": True}, 3),
}
"""(arguments, further ones, how many of the first are differentiated)"""


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("name", LOSSES)
def test_losses_where_nothing_ties(name: str, reduction: str) -> None:
    """Values and gradients are torch's."""
    given, further, count = LOSSES[name]
    results = []
    for function in (NATIVE[name], getattr(functional, name)):
        active = [x.clone().requires_grad_() for x in given[:count]]
        y = function(*active, *given[count:], **further, reduction=reduction)
        results.append((y.detach(), *torch.autograd.grad(y.sum(), active)))
    for found, expected in zip(*results, strict=True):
        assert torch.equal(found, expected)


@pytest.mark.parametrize(
    "older",
    [{"size_average": False}, {"reduce": False}, {"size_average": True}, {"reduction": "elementwise_mean"}],
    ids=str,
)
@pytest.mark.parametrize("name", ["margin_ranking_loss", "hinge_embedding_loss", "triplet_margin_loss"])
def test_older_arguments_of_losses(name: str, older: dict[str, Any]) -> None:
    """They warn as torch's own do."""
    given, further, _ = LOSSES[name]
    results = []
    for function in (NATIVE[name], getattr(functional, name)):
        with pytest.warns(UserWarning, match="deprecated"):
            results.append(function(given[0].clone().requires_grad_(), *given[1:], **further, **older))
    assert torch.equal(*results)


def test_an_unknown_reduction() -> None:
    x = torch.ones(2, requires_grad=True)
    with pytest.raises(ValueError, match="average is not a valid value for reduction"):
        NATIVE["hinge_embedding_loss"](x, torch.ones(2), reduction="average")


def test_normalize_where_nothing_ties() -> None:
    x = torch.tensor([[3.0, 4.0], [0.3, 0.4]], requires_grad=True)
    found, expected = (torch.autograd.grad(f(x)[:, 0].sum(), x)[0] for f in (NATIVE["normalize"], functional.normalize))
    assert torch.equal(found, expected)


def test_losses_at_their_ties() -> None:
    x = torch.tensor([1.0, 3.0], requires_grad=True)
    target = torch.tensor([1.0, -1.0])
    loss = NATIVE["margin_ranking_loss"](x, torch.tensor([2.0, 4.0]), target, margin=-1.0, reduction="sum")
    assert torch.autograd.grad(loss, x)[0].tolist() == [0.0, 0.0]  # -(1 - 2) - 1 = 0; (3 - 4) - 1 < 0
    loss = NATIVE["hinge_embedding_loss"](x, -torch.ones(2), reduction="sum")
    assert torch.autograd.grad(loss, x)[0].tolist() == [0.0, 0.0]
    anchor = torch.tensor([[0.0]], requires_grad=True)
    positive, negative = torch.tensor([[1.0]]), torch.tensor([[2.0]])
    loss = NATIVE["triplet_margin_loss"](anchor, positive, negative, eps=0.0)
    assert torch.autograd.grad(loss, anchor)[0].tolist() == [[0.0]]  # 1 + 1 - 2 = 0
    short = torch.tensor([[0.5]], requires_grad=True)
    (found,) = torch.autograd.grad(NATIVE["normalize"](short, eps=0.5).sum(), short)
    assert found.tolist() == [[2.0]]  # the eps counts: x / 0.5


@of_aminmax
def test_what_torch_has_right_in_aminmax() -> None:
    """It shares evenly: the mode leaves it alone."""
    x = torch.tensor([1.0, 1.0, 0.0, 0.0, 0.0], requires_grad=True)
    low, high = torch.aminmax(x)
    third = 1 / 3
    assert torch.allclose(torch.autograd.grad(high, x, retain_graph=True)[0], torch.tensor([0.5, 0.5, 0, 0, 0]))
    assert torch.allclose(torch.autograd.grad(low, x)[0], torch.tensor([0, 0, third, third, third]))


def test_what_torch_has_right_in_multi_margin_loss() -> None:
    """It gives 0: the mode leaves it alone."""
    scores = torch.tensor([[1.0, 0.0]], requires_grad=True)
    loss = functional.multi_margin_loss(scores, torch.tensor([0]))
    assert torch.autograd.grad(loss, scores)[0].tolist() == [[0.0, 0.0]]


def test_tensors_as_parameters() -> None:
    """torch takes one without axes for a number, unless it would have to be differentiated."""
    x = torch.tensor([-1.0, 0.0])
    for name, value in (("leaky_relu", -0.5), ("elu", 2.0), ("hardtanh", -0.5), ("softshrink", 0.0)):
        expected = gradients_of(NATIVE[name], x, [value], 1.0, None)
        assert torch.equal(*gradients_of(NATIVE[name], x, [torch.tensor(value)], 1.0, None), *expected)
        with pytest.raises(TypeError, match=r"must be (a n|N)umber"):
            NATIVE[name](x.clone().requires_grad_(), torch.tensor(value, requires_grad=True))


# What may happen to a result, and around a call.

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
}


@pytest.mark.parametrize("name", CURVED_OR_REDUCED)
def test_forward_mode_over_forward_mode_and_vmap(name: str) -> None:
    function = CURVED_OR_REDUCED[name]

    def summed(x: Tensor) -> Tensor:
        return (function(x) ** 2).sum()

    twice = torch.func.jacfwd(torch.func.jacfwd(summed))(SIX)
    torch.testing.assert_close(twice, torch.func.jacrev(torch.func.jacrev(summed))(SIX))
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(torch.stack([SIX, SIX]), torch.ones(2, 6))
        moved = forward_ad.unpack_dual(torch.func.vmap(function)(dual)).tangent
    torch.testing.assert_close(moved[1], torch.func.jvp(function, (SIX,), (torch.ones(6),))[1])


@pytest.mark.parametrize("name", LOSSES)
def test_losses_under_autocast(name: str) -> None:
    given, further, count = LOSSES[name]
    half = [x.bfloat16() for x in given]
    with torch.autocast("cpu", torch.bfloat16):
        expected = getattr(functional, name)(*half, **further)
        found = NATIVE[name](*[x.requires_grad_() for x in half[:count]], *half[count:], **further)
    assert found.dtype == expected.dtype
    assert torch.equal(found, expected)


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


def test_scalars_of_numpy_as_parameters() -> None:
    x = torch.tensor([-1.0, 0.0])
    assert gradients_of(NATIVE["leaky_relu"], x, [np.float32(-2)], 1.0, None)[0].tolist() == [-2, 0]


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
