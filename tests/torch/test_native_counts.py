"""`interop.native` in windows and along axes, by counting who is tied."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from interop import TORCH_OPS
from interop.native import NATIVE
from interop.native._rules import windows, windows_blocked, windows_sliced, windows_tiled
from interop.native._rules.windows_compiled import read_stages
from interop.native._rules.windows_stage import Pooling
from jaxclamp._rules.windows import windows_of
from tests.support.calls import of_aminmax
from tests.torch.natively import Tensor, values


def tied_shares(values: np.ndarray) -> np.ndarray:
    """What each element of a window gets: the tied ones share."""
    tied = values == values.max()
    return tied / tied.sum()


WINDOWS = [
    (2, None, 0, 1, False), (3, 2, 1, 1, False), (3, 1, 0, 1, False), (3, 2, 1, 1, True), (2, 1, 0, 2, False),
    (2, 3, 0, 1, False), (4, 2, 2, 1, True), (5, 1, 2, 1, False), (2, 4, 0, 3, False), (2, 4, 1, 1, False),
    (2, 2, 0, 1, True), (1, 1, 0, 1, False),
]  # fmt: skip


@pytest.fixture(params=["by index", "by slices", "by reads", "by views"])
def ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What shares in small tensors; in large ones, here of more than one block; in a compiled program; on a GPU."""
    if request.param == "by views":
        monkeypatch.setattr(windows, "is_on_gpu", lambda x: True)
    if request.param == "by slices":
        take_slices(monkeypatch)
    if request.param == "by reads":
        monkeypatch.setattr(windows, "_stages", lambda pooling, x, values, _: read_stages(pooling, x, values))


def take_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows_sliced, "_FEW", 0)
    monkeypatch.setattr(windows, "_FEW_READS", 0)
    monkeypatch.setattr(windows, "_BLOCK", 100)
    monkeypatch.setattr(windows_sliced, "_BLOCK", 100)


def gradient_and_transposed(y: Tensor, x: Tensor, cotangent: Tensor) -> Tensor:
    """The gradient along ``cotangent``, whose own derivative is asked too: what that spreads, this gathers."""
    cotangent.requires_grad_()
    (gradient,) = torch.autograd.grad(y, x, cotangent, create_graph=True)
    vector = torch.arange(1, x.numel() + 1, dtype=x.dtype).reshape(x.shape)
    (gathered,) = torch.autograd.grad(gradient, cotangent, vector)
    torch.testing.assert_close((gathered * cotangent).sum(), (vector * gradient).sum())
    return gradient.detach()


@pytest.mark.usefixtures("ways")
@pytest.mark.parametrize("window", WINDOWS, ids=str)
@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("lengths", [(7, 6, 5), (8, 6, 4)], ids=str)
def test_pools_share_by_count(lengths: tuple[int, ...], dims: int, window: tuple[Any, ...]) -> None:
    """Windows of 2 tile what has even lengths."""
    if lengths == (8, 6, 4) and window[:2] not in ((2, None), (2, 2)):
        return  # these windows take the same way as over the other lengths
    size, stride, padding, dilation, _ = window
    stride = stride or size
    numbers = np.random.default_rng(dims)
    x = numbers.integers(-2, 3, (2, 2, *lengths[:dims])).astype(np.float64)
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


OF_FEW_PLACES = [
    *(window for window in WINDOWS if 2 <= window[0] <= 3),
    ((3, 2), (1, 2), (1, 0), 1, False), ((1, 4), (3, 1), (0, 2), (1, 2), True), (3, 2, 1, 2, False),
]  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("window", OF_FEW_PLACES, ids=str)
def test_blocks_in_channels_last_share_by_count(
    window: tuple[Any, ...], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As row-major images by index, of 16 bits rounded once; the last block has fewer images."""
    x = torch.randint(-2, 3, (5, 5, 9, 7), generator=torch.Generator().manual_seed(0)).to(dtype)
    x[0] = 1  # all elements of a window tie, of which there are fewer at the padding
    y = functional.max_pool2d(x, *window)
    cotangent = torch.arange(y.numel()).remainder(7).sub(3).reshape(y.shape).to(dtype)

    def gradient(x: Tensor) -> Tensor:
        active = x.requires_grad_()
        pooled = NATIVE["max_pool2d"](active, *window)
        assert torch.equal(pooled, y)
        along = cotangent.to(x.dtype, copy=True)
        if x.dtype is torch.bfloat16:
            return torch.autograd.grad(pooled, active, along)[0]
        return gradient_and_transposed(pooled, active, along)

    expected = gradient(x.double()).to(dtype)
    take_slices(monkeypatch)
    blocks = []
    spread = windows_blocked._Block.spread

    def observed(block: windows_blocked._Block, x: Tensor, *of: Tensor) -> Tensor:
        blocks.append(x.shape)
        block._spread.copy_(torch.arange(block._spread.numel()).reshape(block._spread.shape))
        assert all(len(part.unique()) == part.numel() for part, _ in block._parts)  # or two threads would add to one
        return spread(block, x, *of)

    monkeypatch.setattr(windows_blocked._Block, "spread", observed)
    monkeypatch.setattr(windows_blocked, "_BLOCK", 2 * x[0].numel())
    found = gradient(x.contiguous(memory_format=torch.channels_last))
    assert blocks == [(images, 9, 7, 5) for images in (2, 2, 1)]
    assert found.is_contiguous(memory_format=torch.channels_last)
    rounded, added = (2**-8, 2**-20) if dtype is torch.bfloat16 else (1e-12, 1e-12)
    torch.testing.assert_close(found, expected, rtol=rounded, atol=added)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize(
    "window",
    [(5, 1, 2), (2,), (3, 2, 1), *(pytest.param(w, marks=pytest.mark.thorough) for w in ((4, 4), (3, 1, 0, 2)))],
    ids=str,
)
@pytest.mark.parametrize("way", ["by index", "by slices", pytest.param("compiled", marks=pytest.mark.thorough)])
@pytest.mark.parametrize("height", [8, pytest.param(9, marks=pytest.mark.thorough)])
def test_windows_with_nan_and_infinities(
    height: int, way: str, window: tuple[int, ...], layout: torch.memory_format, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By slices and compiled a large one is taken axis by axis, which the program of JAX is not.

    Of the height 8, windows of 2 and of 4 tile an image.
    """
    if way == "compiled" and (len(window) < 3 or layout is torch.channels_last):
        return  # they are no way of their own there, and take long to trace
    if way == "by slices":
        take_slices(monkeypatch)
    numbers = torch.Generator().manual_seed(0)
    x = torch.randint(-2, 3, (2, 2, height, 8), generator=numbers).float()
    x[0, 0, 3, 3], x[0, 1, 2, 2:4], x[1, 0], x[1, 1, 4, 4:6] = torch.nan, torch.inf, -torch.inf, torch.nan
    x[0, 0, 0, :4] = torch.tensor([0.0, -0.0, -0.0, 0.0])
    x = x.contiguous(memory_format=layout).requires_grad_()
    cotangent = torch.randint(1, 4, functional.max_pool2d(x, *window).shape, generator=numbers).float()
    cotangent[0, 0, 0, 0] = torch.inf

    def gradient(pool: Callable[..., Tensor]) -> Tensor:
        return torch.autograd.grad(pool(x, *window), x, cotangent)[0]

    ours = NATIVE["max_pool2d"]
    found = gradient(torch.compile(ours, fullgraph=True, backend="aot_eager") if way == "compiled" else ours)
    torch.testing.assert_close(found, gradient(TORCH_OPS["max_pool2d"]), equal_nan=True)


@pytest.mark.usefixtures("ways")
@pytest.mark.parametrize("counts", [3, 4, 1, pytest.param(9, marks=pytest.mark.thorough)], ids="to_{}".format)
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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("window", [(1,), (2,), (3, 2, 1), (3, 1, 1), (17, 17), ((17, 34),)], ids=str)
@pytest.mark.parametrize("width", [34, 35])
def test_large_images_are_pooled_as_small_ones(
    width: int,
    window: tuple[Any, ...],
    layout: torch.memory_format,
    dtype: torch.dtype,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Values and gradients of images that lie together, by slices, and of each by index; of 17 x 17 over 256 tie.

    Of the width 34, windows of 2, of 17 and of 17 x 34 tile an image. What windows of 1 give is no view of it.
    """
    x = torch.randint(0, 2, (4, 8, 34, width), generator=torch.Generator().manual_seed(0)).to(dtype)
    x[0, 0, :17] = 1
    x = x.contiguous(memory_format=layout).requires_grad_()
    with torch.no_grad():
        inferred = NATIVE["max_pool2d"](x, *window)
    y = NATIVE["max_pool2d"](x, *window)
    with monkeypatch.context() as patched:
        patched.setattr(windows, "_FEW_READS", 0)
        (found,) = torch.autograd.grad(y.sum(), x)
    each = [NATIVE["max_pool2d"](image, *window) for plane in x for image in plane[:, None]]
    (expected,) = torch.autograd.grad(torch.stack(each).sum(), x)
    assert torch.equal(y, functional.max_pool2d(x, *window))
    assert torch.equal(inferred, y)
    assert inferred.data_ptr() != x.data_ptr()
    assert found.is_contiguous(memory_format=layout)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("in_a_list", [False, True])
def test_a_size_that_is_overwritten_between_calls(in_a_list: bool) -> None:
    """Torch takes a tensor for a number."""
    size = torch.tensor(2)
    x = torch.arange(64.0).reshape(1, 1, 8, 8).requires_grad_()
    for number in (2, 4):
        size.fill_(number)
        y = NATIVE["max_pool2d"](x, [size, size] if in_a_list else size)
        assert torch.equal(torch.autograd.grad(y.sum(), x)[0].sum(), torch.tensor(float(y.numel())))


@pytest.mark.parametrize("on_gpu", [False, True])
def test_exclusive_leaves_out_the_first_of_each_window(on_gpu: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows of 3 with stride 2 and padding 1: those of (3, 3, 1, 2, 0) are (3, 3), (3, 1, 2) and (2, 0)."""
    monkeypatch.setattr(windows, "is_on_gpu", lambda x: on_gpu)
    x = torch.tensor([[3.0, 3.0, 1.0, 2.0, 0.0]], requires_grad=True)
    y = NATIVE["max_pool1d"](x, 3, 2, 1, ties="exclusive")
    assert torch.autograd.grad(y, x, torch.tensor([[10.0, 20.0, 40.0]]))[0].tolist() == [[0, 30, 0, 40, 0]]


@pytest.mark.usefixtures("ways")
@pytest.mark.parametrize("window", [(2,), (3, 2, 1)], ids=str)
def test_pools_of_no_images(window: tuple[int, ...]) -> None:
    x = torch.ones((0, 3, 8, 8), requires_grad=True)
    y = NATIVE["max_pool2d"](x, *window)
    assert torch.autograd.grad(y.sum(), x)[0].shape == x.shape


@of_aminmax
def test_what_torch_has_right_in_aminmax() -> None:
    """It shares evenly: the mode leaves it alone."""
    x = torch.tensor([1.0, 1.0, 0.0, 0.0, 0.0], requires_grad=True)
    low, high = torch.aminmax(x)
    third = 1 / 3
    assert torch.allclose(torch.autograd.grad(high, x, retain_graph=True)[0], torch.tensor([0.5, 0.5, 0, 0, 0]))
    assert torch.allclose(torch.autograd.grad(low, x)[0], torch.tensor([0, 0, third, third, third]))


def test_a_volume_without_a_batch_is_no_image_with_channels() -> None:
    """It has four axes too, and torch differentiates it on a GPU, whichever of them lies last in memory."""
    x = (torch.arange(128.0) % 5).reshape(2, 4, 4, 4)
    pooling = Pooling(windows_of("max_pool3d", tuple(x.shape), 3, 2, None, 0, 1, False), "min_norm")
    found = windows_tiled.largest_of_tiles(pooling, x.contiguous(memory_format=torch.channels_last))
    assert torch.equal(found, functional.max_pool3d(x, 2))
