"""The reductions and what has parameters, beside torch: values, gradients without ties, and what is refused."""

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.nn import functional

import interop
import jaxclamp
from jaxclamp import OPS
from jaxclamp._shared.oracle import min_norm_of_values, points_near
from tests.support.compilations import compilations


@pytest.mark.parametrize("name", ["max", "min"])
def test_indices(name: str) -> None:
    ours, theirs = OPS[f"{name}_with_indices"].function, getattr(torch, name)
    x = jnp.array([[1.0, 3.0, 3.0], [2.0, 0.0, 0.0], [jnp.nan, 1.0, jnp.nan]])
    for axis, keepdims in itertools.product((0, 1, -1), (False, True)):
        expected = theirs(torch.tensor(np.asarray(x)), axis, keepdim=keepdims)
        for got, want in zip(ours(x, axis, keepdims), expected, strict=True):
            np.testing.assert_array_equal(got, want)
    t = torch.tensor(np.asarray(x), requires_grad=True)
    wrapped = interop.TORCH_OPS[f"{name}_with_indices"](t, dim=1)
    assert not wrapped.indices.requires_grad
    wrapped.values.sum().backward()
    tied = [[0, 0.5, 0.5], [1, 0, 0]] if name == "max" else [[1, 0, 0], [0, 0.5, 0.5]]
    assert t.grad.tolist() == [*tied, [0.5, 0, 0.5]]


@pytest.mark.parametrize("name", ["max", "min"])
def test_indices_of_jagged_tensors(name: str) -> None:
    x = torch.nested.nested_tensor([torch.zeros(1, 2), torch.eye(2)], layout=torch.jagged, requires_grad=True)
    with interop.min_norm():
        pair = getattr(torch, name)(x, -1)
    pair.values.values().sum().backward()
    assert x.grad.values().tolist() == [[0.5, 0.5], *([[1, 0], [0, 1]] if name == "max" else [[0, 1], [1, 0]])]


JAGGED: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], list[float]]] = {
    "of all": (torch.max, [0.0, 0.0, 0.5, 0.5]),
    "of all, method": (lambda x: -(-x).min(), [0.0, 0.0, 0.5, 0.5]),
    "along the jagged axis": (lambda x: x.amax(1).sum(), [0.5, 0.5, 0.5, 0.5]),
    "the axis stays": (lambda x: -torch.amin(-x, -1, keepdim=True).sum(), [0.5, 0.5, 0.5, 0.5]),
}


@pytest.mark.parametrize("ties", ["min_norm", "balanced"])
@pytest.mark.parametrize("name", JAGGED)
def test_extrema_of_jagged_tensors(name: str, ties: str) -> None:
    function, expected = JAGGED[name]
    x = torch.nested.nested_tensor([[1.0, 1.0], [2.0, 2.0]], layout=torch.jagged, requires_grad=True)
    with interop.min_norm(ties=ties):
        function(x).backward()
    assert x.grad.values().tolist() == expected


def test_a_maximum_that_no_gradient_reaches() -> None:
    """A function behind it may have no gradient for it, in the place of zeros."""

    class Cut(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, cotangent: torch.Tensor) -> None:
            return None

    x = torch.zeros(2, requires_grad=True)
    with interop.min_norm():
        loss = Cut.apply(torch.max(x, 0).values) + x.sum()
    assert torch.autograd.grad(loss, x)[0].tolist() == [1, 1]


ALONG_AXES = {
    "amax": torch.amax,
    "amin": torch.amin,
    "logsumexp": torch.logsumexp,
    "norm": lambda x, dim, keepdim: torch.norm(x, 2, dim, keepdim),
    "vector_norm": lambda x, dim, keepdim: torch.linalg.vector_norm(x, 2, dim, keepdim),
    "linalg_norm": lambda x, dim, keepdim: torch.linalg.norm(x, None, dim, keepdim),
}
AXES = [0, -1, np.int32(0), np.int64(1), torch.tensor(1), (0, 2), [2, 0], (0, np.int64(-1)), (), None]
REFUSED_AXES = [3, -4, (0, 3), (0, 0), (0, -3), 1.0, True, np.array([0, 1])]


def in_native(name: str, x: torch.Tensor, dim: Any, keepdim: bool) -> torch.Tensor:
    further = {"norm": (2,), "vector_norm": (2,), "linalg_norm": (None,)}.get(name, ())
    result: torch.Tensor = interop.native.NATIVE[name](x, *further, dim, keepdim)
    return result


TAKEN = [
    (name, dim)
    for name, dim in itertools.product(ALONG_AXES, AXES)
    if not (name == "linalg_norm" and repr(dim) == "()") and not (name == "logsumexp" and repr(dim) in ("()", "None"))
]
"""Torch refuses no axes in `torch.linalg.norm`, and in `torch.logsumexp` None, or no axes without ``keepdim``."""


@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize(("name", "dim"), TAKEN, ids=repr)
def test_axes_in_every_form(name: str, dim: Any, keepdim: bool) -> None:
    """Away from ties the gradients are torch's own."""
    x = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()
    expected, found = ALONG_AXES[name](x, dim, keepdim), in_native(name, x, dim, keepdim)
    assert torch.equal(found, expected)
    (gradient,) = torch.autograd.grad(expected.square().sum(), x)
    torch.testing.assert_close(torch.autograd.grad(found.square().sum(), x)[0], gradient)
    along = interop.grad(lambda x: ALONG_AXES[name](x, dim, keepdim).square().sum())(x.detach())
    torch.testing.assert_close(along, gradient)


@pytest.mark.parametrize(
    ("name", "dim", "dims"),
    [*((name, dim, 3) for name in ALONG_AXES for dim in REFUSED_AXES), *(("linalg_norm", (), n) for n in (1, 2))],
    ids=repr,
)
def test_axes_that_torch_refuses(name: str, dim: Any, dims: int) -> None:
    x = torch.ones((2, 3, 4)[:dims], requires_grad=True)
    with pytest.raises((IndexError, RuntimeError, TypeError)) as in_torch:
        ALONG_AXES[name](x, dim, False)
    with pytest.raises(in_torch.type):
        in_native(name, x, dim, False)
    with pytest.raises(in_torch.type):
        interop.grad(lambda x: ALONG_AXES[name](x, dim, False).sum())(x.detach())


def test_a_window_behind_the_last_element_with_ceil_mode() -> None:
    """The window of 7 begins inside and reaches one element beyond."""
    x = torch.arange(36.0).reshape(1, 1, 6, 6).requires_grad_()
    expected = functional.max_pool2d(x, 7, 2, ceil_mode=True)
    for pool in (interop.max_pool2d, interop.native.max_pool2d):
        assert torch.equal(pool(x, 7, 2, ceil_mode=True), expected)
        (gradient,) = torch.autograd.grad(pool(x, 7, 2, ceil_mode=True).sum(), x)
        assert gradient.nonzero().tolist() == [[0, 0, 5, 5]]
        with pytest.raises((ValueError, RuntimeError)):
            pool(x, 9, 2, ceil_mode=True)


WINDOWS_1D = [(2,), (3, 1), (3, 2, 1), (2, 3, 0, 2), (2, None, 1), (1,)]
WINDOWS_2D = [(2,), ((2, 1), (1, 2)), (2, 1, (0, 1)), (2, 2, 1, (1, 2)), ((1, 3), None, 0, 1)]


def pools() -> list[Any]:
    one = [(jaxclamp.max_pool1d, functional.max_pool1d, w, (2, 3, 7)) for w in WINDOWS_1D]
    two = [(jaxclamp.max_pool2d, functional.max_pool2d, w, (2, 3, 4, 5)) for w in WINDOWS_2D]
    tiles = [(jaxclamp.max_pool2d, functional.max_pool2d, w, (2, 3, 10, 8)) for w in (((5, 4),), ((5, 8), None, 0, 1))]
    return [
        # Of large tiles, compiled programs take as long as all others together.
        pytest.param(*case, id=f"{case[0].__name__}{case[2]}", marks=[pytest.mark.thorough] * (case in tiles))
        for case in one + two + tiles
    ]


@pytest.mark.parametrize(("pool", "native", "window", "shape"), pools())
def test_pools(pool: Callable[..., Any], native: Callable[..., Any], window: Any, shape: tuple[int, ...]) -> None:
    """Values as in torch; without ties the gradient too; with ties, that of each output, by definition."""
    rng = np.random.default_rng(0)
    distinct = torch.tensor(rng.permutation(np.prod(shape)).reshape(shape).astype(np.float32), requires_grad=True)
    pooled = native(distinct, *window)
    pooled.sum().backward()
    tied = rng.integers(0, 2, shape).astype(np.float32)[0, 0]

    @jax.jit
    def everything(distinct: jax.Array, tied: jax.Array) -> list[jax.Array]:
        gradient = jax.grad(lambda x: pool(x, *window).sum())(distinct)
        return [pool(distinct, *window), gradient, jax.jacrev(lambda x: pool(x, *window))(tied)]

    value, gradient, jacobian = everything(distinct.detach().numpy(), tied)
    np.testing.assert_array_equal(value, pooled.detach())
    np.testing.assert_array_equal(gradient, distinct.grad)

    point = tied.astype(np.float64).ravel()
    near = torch.tensor(points_near(point).reshape(-1, 1, *tied.shape))
    values = native(near, *window).flatten(1).numpy()
    for output, row in enumerate(jacobian.reshape(-1, tied.size)):
        expected = min_norm_of_values(point, values[:, output])
        np.testing.assert_allclose(row, expected, atol=1e-3, err_msg=f"output {output}")


@pytest.mark.parametrize("shape", [pytest.param((4,), marks=pytest.mark.thorough), (4, 3), (4, 3, 2)])
def test_prelu_by_channel_as_in_torch(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=shape).astype(np.float32)
    channels = shape[1] if len(shape) > 1 else 1
    for size in {1, channels}:
        weight = rng.uniform(0.1, 0.9, size).astype(np.float32)
        tensors = [torch.tensor(a, requires_grad=True) for a in (x, weight)]
        functional.prelu(*tensors).sum().backward()
        np.testing.assert_allclose(jaxclamp.prelu(x, weight), functional.prelu(*tensors).detach(), rtol=1e-6)
        gradients = jax.grad(lambda x, w: jaxclamp.prelu(x, w).sum(), argnums=(0, 1))(x, weight)
        for found, tensor in zip(gradients, tensors, strict=True):
            np.testing.assert_allclose(found, tensor.grad, rtol=1e-5)
    with pytest.raises(ValueError, match=r"prelu: weight has shape \(5,\), but x .* channels along axis 1"):
        jaxclamp.prelu(x, np.ones(5, np.float32))


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda: interop.softshrink(torch.ones(2), -1.0), RuntimeError, r"softshrink: lambd=-1\.0 is negative"),
        (lambda: interop.hardtanh(torch.ones(2), 2.0, 1.0), ValueError, r"hardtanh: min_val=2\.0 is greater"),
    ],
)
def test_parameters_refused(call: Callable[[], object], kind: type[Exception], message: str) -> None:
    """By the kind of exception that torch raises."""
    with pytest.raises(kind, match=message):
        call()


def test_int_bounds_do_not_compile_anew() -> None:
    interop.clamp(torch.ones(2), 0, 7)
    before = compilations()
    for bound in range(8, 12):
        assert interop.clamp(torch.full((2,), 20.0), 0, bound).tolist() == [bound, bound]
    assert compilations() == before
    interop.clamp(torch.ones(5), 0, 7)  # another shape
    assert compilations() > before


@pytest.mark.parametrize("name", ["amax", pytest.param("amin", marks=pytest.mark.thorough)])
def test_amax_of_integers(name: str) -> None:
    """To find the dtype of the result, a scalar stood for the tensor, and no axis but the first was in range."""
    for shape in ((), (3,), (3, 2, 1, 2)):
        x = torch.arange(torch.Size(shape).numel()).reshape(shape)
        count = max(len(shape), 1)  # a tensor without axes reduces along one all the same
        dims = [(), *range(-count, count), *itertools.combinations(range(len(shape)), 2)]
        for dim, keepdim in itertools.product(dims, (False, True)):
            found, expected = (getattr(home, name)(x, dim, keepdim=keepdim) for home in (interop, torch))
            assert found.dtype == expected.dtype
            assert torch.equal(found, expected), (shape, dim, keepdim)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32], ids=str)
def test_amax_of_other_integers(dtype: torch.dtype) -> None:
    x = torch.tensor([[0, 127, 3], [5, 4, 127]]).to(dtype)
    assert torch.equal(interop.amax(x, 1), torch.amax(x, 1))
    assert torch.equal(interop.amin(x, dim=1), torch.amin(x, dim=1))


@pytest.mark.parametrize(("shape", "weights"), [((0, 3), 3), ((2, 0), 0), ((2, 0), 1), ((2, 0, 4), 0), ((0,), 1)])
def test_prelu_of_no_elements(shape: tuple[int, ...], weights: int) -> None:
    """It could not reshape them."""
    results = []
    for prelu in (interop.prelu, interop.native.prelu, functional.prelu):
        x, weight = torch.ones(shape, requires_grad=True), torch.ones(weights, requires_grad=True)
        value = prelu(x, weight)
        results.append([value.detach(), *torch.autograd.grad(value.sum(), (x, weight))])
    for *found, expected in zip(*results, strict=True):
        assert all(f.dtype == expected.dtype and torch.equal(f, expected) for f in found)
