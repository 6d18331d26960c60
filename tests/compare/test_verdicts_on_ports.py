"""`interop.compare_models` of faithful ports: whatever the inputs, no verdict that blames the port."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from interop import compare_models
from interop.comparison.models.cause import slip_of
from tests.compare.models import blamed, port_of
from tests.compare.random_networks import INPUTS, outcome

F32 = np.float32
IMAGES = np.random.default_rng(0).normal(size=(2, 3, 6, 5)).astype(F32)


pytestmark = pytest.mark.usefixtures("seeded")


@pytest.mark.parametrize(("of_torch", "is_named"), [("0.1", False), ("0.9", True), ("1e-05", True)])
def test_a_momentum_is_named_only_if_it_is_wrong(of_torch: str, is_named: bool) -> None:
    first = SimpleNamespace(settings="BatchNorm(momentum=0.9)")
    second = SimpleNamespace(settings=f"BatchNorm2d(4, eps=1e-05, momentum={of_torch})")
    layer = SimpleNamespace(updates=(True, True), first=first, second=second)
    cause: Any = SimpleNamespace(is_own_code=False, layer=layer, parts=[SimpleNamespace(what="state")])
    slip = slip_of(cause, ("A (flax 0.12)", "B (torch 2.13.0)"))
    assert bool(slip) == is_named
    assert not slip or f"so that {of_torch} in torch is {1 - float(of_torch):.4g} in the other model" in slip


class Flattening(nn.Module):
    """A convolution, an image that is flattened, and a dense layer."""

    between: Callable[[Any], Any]
    permuted: tuple[int, ...] | None = None

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = self.between(nn.Conv(4, (3, 3), padding=1, name="conv")(x))
        x = x if self.permuted is None else x.transpose(self.permuted)
        return nn.Dense(5, name="fc")(x.reshape(x.shape[0], -1))


class FlatteningPort(torch.nn.Module):
    def __init__(
        self, between: Callable[[Any], Any], permuted: tuple[int, ...] | None = None, features: int = 4 * 6 * 5
    ) -> None:
        super().__init__()
        self.between, self.permuted = between, permuted
        self.conv, self.fc = torch.nn.Conv2d(3, 4, 3, padding=1), torch.nn.Linear(features, 5)

    def forward(self, x: torch.Tensor) -> Any:
        x = self.between(self.conv(x))
        return self.fc((x if self.permuted is None else x.permute(self.permuted)).flatten(1))


CONSTANTS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "dead": (lambda x: torch.relu(x - 1000), lambda x: nn.relu(x - 1000)),
    "clipped": (lambda x: (x + 1000).clamp(0, 6), lambda x: jnp.clip(x + 1000, 0, 6)),
    "times zero, plus a half": (lambda x: x * 0 + 0.5, lambda x: x * 0 + 0.5),
    "times zero": (lambda x: x * 0, lambda x: x * 0),
}


@pytest.mark.parametrize(
    "kind", [pytest.param(k, marks=[pytest.mark.thorough] * (k not in ("dead", "times zero"))) for k in CONSTANTS]
)
def test_a_constant_that_is_flattened_does_not_tell_the_order_of_axes(kind: str) -> None:
    """The kernel behind does, by the order by which it was mapped."""
    in_torch, in_jax = CONSTANTS[kind]
    comparison = compare_models(FlatteningPort(in_torch), Flattening(in_jax), IMAGES)
    assert comparison.agree, comparison
    wrong = compare_models(FlatteningPort(lambda x: 0.5 + in_torch(x)), Flattening(in_jax), IMAGES)
    assert wrong.cause is not None
    assert not wrong.cause.is_gradient


class Numbered(nn.Module):
    """Layers that Flax numbers from 0 on."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        for _ in range(3):
            x = jnp.tanh(nn.Dense(4)(x))
        return x


@pytest.mark.parametrize(
    "names", [pytest.param(("dense1", "dense2", "dense3"), marks=pytest.mark.thorough), ("fc1", "fc2", "head")]
)
def test_numbers_from_0_and_from_1_are_no_names(names: tuple[str, ...]) -> None:
    port = port_of(**{name: torch.nn.Linear(4, 4) for name in names})
    comparison = compare_models(port, Numbered(), IMAGES[0, 0, :, :4])
    assert comparison.agree, comparison
    counterparts = {pair.first.owner: pair.second.owner for pair in comparison.mapping.pairs}
    assert counterparts == dict(zip(names, ("Dense_0", "Dense_1", "Dense_2"), strict=True))


class Normed(nn.Module):
    """Behind the norm, whose scale is 0, all is constant but the gradient."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = nn.Conv(4, (3, 3), padding=1, name="conv")(x)
        x = nn.BatchNorm(use_running_average=True, name="norm")(x)
        x = nn.Dropout(0.5, deterministic=True)(x.reshape(x.shape[0], -1))
        return nn.Dense(5, name="fc")(x)


class NormedPort(torch.nn.Module):
    def __init__(self, order: tuple[int, ...]) -> None:
        super().__init__()
        self.order = order
        self.conv, self.norm, self.drop = (
            torch.nn.Conv2d(3, 4, 3, padding=1),
            torch.nn.BatchNorm2d(4),
            torch.nn.Dropout(),
        )
        self.fc = torch.nn.Linear(4 * 6 * 5, 5)
        torch.nn.init.zeros_(self.norm.weight)

    def forward(self, x: torch.Tensor) -> Any:
        return self.fc(self.drop(self.norm(self.conv(x)).permute(self.order).flatten(1)))


@pytest.mark.thorough
def test_gradients_tell_the_order_of_axes_of_a_constant() -> None:
    """Behind dropout, the boundary is not that of a layer with a kernel."""
    assert compare_models(NormedPort((0, 1, 2, 3)).eval(), Normed(), IMAGES).agree
    wrong = compare_models(NormedPort((0, 1, 3, 2)).eval(), Normed(), IMAGES).cause
    assert wrong is not None
    assert (wrong.finding, wrong.is_gradient, wrong.before and wrong.before.name) == ("port", True, "drop | Dropout_0")


@pytest.mark.parametrize("side", ["torch", pytest.param("flax", marks=pytest.mark.thorough)])
def test_a_model_may_permute_before_it_flattens(side: str) -> None:
    """As ports do, to keep the kernel as it was; what enters the layer tells that it has one order on both sides."""
    orders = ((0, 2, 3, 1), None) if side == "torch" else (None, (0, 3, 1, 2))
    models = FlatteningPort(torch.tanh, orders[0]), Flattening(jnp.tanh, orders[1])
    comparison = compare_models(*models, IMAGES)
    assert comparison.agree, comparison
    (kernel,) = [pair for pair in comparison.mapping.pairs if pair.first.name == "fc.weight"]
    weight = np.arange(600, dtype=F32).reshape(5, 120)
    np.testing.assert_array_equal(kernel.to_second(weight), weight.T)


def test_the_order_of_axes_is_told_in_float64() -> None:
    """In float32 the rows that enter the layer are apart by more than rounding of their own."""
    port = FlatteningPort(lambda x: torch.tanh(x) + 1000 - 1000, (0, 2, 3, 1))
    assert compare_models(port, Flattening(jnp.tanh), IMAGES).agree


def test_images_are_flattened_behind_pools_of_any_shape() -> None:
    """6x5 becomes 3x3, which is not of the same proportions; and names may be given."""
    models = (
        FlatteningPort(lambda x: torch.nn.functional.max_pool2d(x, 3, 2, 1), features=4 * 3 * 3),
        Flattening(lambda x: nn.max_pool(x, (3, 3), (2, 2), ((1, 1), (1, 1)))),
    )
    assert compare_models(*models, IMAGES).agree
    assert compare_models(*models, IMAGES, mapping={"fc": "fc"}).agree


class Sequence(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = jnp.tanh(nn.Conv(4, (3,), padding=1)(x))
        return nn.Dense(5)(x.reshape(x.shape[0], -1))


def test_sequences_are_flattened_too() -> None:
    port = torch.nn.Sequential(
        torch.nn.Conv1d(3, 4, 3, padding=1), torch.nn.Tanh(), torch.nn.Flatten(), torch.nn.Linear(28, 5)
    )
    x = np.random.default_rng(0).normal(size=(2, 3, 7)).astype(F32)
    assert compare_models(port, Sequence(), x, layouts=("NCL", "NLC")).agree


class Attention(nn.Module):
    arguments: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = nn.LayerNorm(epsilon=1e-5)(x)
        return nn.Dense(3)(x + nn.MultiHeadDotProductAttention(2)(*[x] * self.arguments))


class AttentionPort(torch.nn.Module):
    def __init__(self, wrong: float, is_copied: bool) -> None:
        super().__init__()
        self.wrong, self.is_copied = wrong, is_copied
        self.norm, self.head = torch.nn.LayerNorm(8), torch.nn.Linear(8, 3)
        self.attention = torch.nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: torch.Tensor) -> Any:
        x = self.norm(x)
        value = x + self.wrong if self.wrong or self.is_copied else x
        return self.head(x + self.attention(x, x, value)[0])


@pytest.mark.parametrize(
    ("arguments", "wrong", "is_copied"),
    [
        (1, 0.0, False),
        *(pytest.param(count, 0.0, False, marks=pytest.mark.thorough) for count in (2, 3)),
        (3, 0.0, True),
        (3, 0.1, False),
    ],
)
def test_attention_takes_an_array_once_or_several_times(arguments: int, wrong: float, is_copied: bool) -> None:
    x = np.random.default_rng(0).normal(size=(2, 5, 8)).astype(F32)
    comparison = compare_models(AttentionPort(wrong, is_copied), Attention(arguments), x)
    assert comparison.agree == (not wrong), comparison


class Scaled(nn.Module):
    """Divides by the root of the mean square, in float32 whatever the dtype, as large language models do."""

    eps: float

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        weight = self.param("weight", nn.initializers.ones, (x.shape[-1],))
        narrow = x.astype(jnp.float32)
        scaled = narrow * jax.lax.rsqrt((narrow**2).mean(-1, keepdims=True) + self.eps)
        return weight * scaled.astype(x.dtype)


class ScaledPort(torch.nn.Module):
    def __init__(self, in_float32: bool) -> None:
        super().__init__()
        self.in_float32, self.weight = in_float32, torch.nn.Parameter(torch.ones(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        narrow = x.float() if self.in_float32 else x
        return self.weight * (narrow * torch.rsqrt(narrow.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


class Normalized(nn.Module):
    eps: float

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return nn.Dense(3, name="head")(Scaled(self.eps, name="norm")(nn.Dense(8, name="dense")(x)))


class NormalizedPort(torch.nn.Module):
    def __init__(self, in_float32: bool = False) -> None:
        super().__init__()
        self.dense, self.norm, self.head = torch.nn.Linear(6, 8), ScaledPort(in_float32), torch.nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> Any:
        return self.head(self.norm(self.dense(x)))


@pytest.mark.parametrize(
    ("jax_first", "eps"), [pytest.param(True, 1e-6, marks=pytest.mark.thorough), (False, 1e-6), (False, 1e-5)]
)
def test_a_part_may_be_computed_in_float32(jax_first: bool, eps: float) -> None:
    """In float64 too; a small difference of settings is still one."""
    x = np.random.default_rng(0).normal(size=(4, 6)).astype(F32)
    models = NormalizedPort(), Normalized(eps)
    comparison = compare_models(*(models[::-1] if jax_first else models), x)
    assert comparison.agree == (eps == 1e-6), comparison


def test_a_part_in_float32_is_seen_in_torch_too() -> None:
    x = np.random.default_rng(0).normal(size=(4, 6)).astype(F32)
    comparison = compare_models(NormalizedPort(in_float32=True), NormalizedPort(), x)
    assert comparison.agree, comparison


class Timed(nn.Module):
    """Adds what a layer makes of sines of an integer, as diffusion models do."""

    @nn.compact
    def __call__(self, x: jax.Array, time: jax.Array) -> jax.Array:
        waves = jnp.sin(time[:, None] * jnp.exp(-jnp.arange(8.0)))
        return nn.LayerNorm(epsilon=1e-6, name="norm")(nn.Dense(8, name="x")(x) + nn.Dense(8, name="time")(waves))


class TimedPort(torch.nn.Module):
    def __init__(self, eps: float, in_float32: bool) -> None:
        super().__init__()
        self.x, self.time, self.norm = torch.nn.Linear(6, 8), torch.nn.Linear(8, 8), torch.nn.LayerNorm(8, eps)
        self.dtype = torch.float32 if in_float32 else None

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> Any:
        waves = torch.sin(time[:, None] * torch.exp(-torch.arange(8.0, dtype=self.dtype)))
        return self.norm(self.x(x) + self.time(waves.to(x.dtype)))


@pytest.mark.parametrize(
    ("eps", "in_float32"), [pytest.param(1e-6, False, marks=pytest.mark.thorough), (1e-6, True), (1.1e-6, False)]
)
def test_what_is_computed_of_integers(eps: float, in_float32: bool) -> None:
    """Its gradient is compared, too; without a dtype it is of float64 where the model is."""
    x = np.random.default_rng(0).normal(size=(4, 6)).astype(F32)
    comparison = compare_models(TimedPort(eps, in_float32), Timed(), x, np.arange(7, 11))
    assert blamed(comparison) == (("norm",) if eps == 1.1e-6 else ()), comparison


class Larger(torch.nn.Module):
    """The larger of two columns that are the same, of which ``divided`` rounds one."""

    def __init__(self, *, divided: bool = False, detached: bool = False) -> None:
        super().__init__()
        self.divided, self.detached = divided, detached
        self.a, self.b = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)

    def forward(self, x: torch.Tensor, rows: Any = ...) -> Any:
        x = x[rows]
        left, right = x[:, :1], x[:, 1:]
        h = self.b(self.a(x) * torch.maximum(left, right * 0.1 * 10 if self.divided else right))
        return h + self.a(x.detach() if self.detached else x)


def only_in_float32(model: torch.nn.Module, x: torch.Tensor, rows: torch.Tensor) -> Any:
    if x.dtype != torch.float32:
        raise TypeError("float32 alone")
    return model(x, rows)


def test_near_ties_are_told_from_bugs() -> None:
    """The columns are equal in one model; in the other they differ by rounding, in float32 as in float64.

    Integers among the inputs stay as they are.
    """
    x = np.random.default_rng(0).normal(size=(40, 1)).astype(F32) * np.ones(2, F32)
    rounded = {dtype: (x[:, 0].astype(dtype) * dtype(0.1) * dtype(10) != x[:, 0]).sum() for dtype in (F32, np.float64)}
    assert min(rounded.values()) > 4
    comparison = compare_models(Larger(), Larger(divided=True), x)
    assert comparison.cause is not None
    assert (comparison.cause.finding, comparison.cause.is_gradient) == ("near ties", True)
    assert "near ties: at numbers beside" in comparison.verdict
    assert comparison.verdict.endswith("Use random inputs.")
    comparison.assert_agree(allow=["near ties"])
    with pytest.raises(AssertionError, match="near"):
        comparison.assert_agree(allow=["ties"])
    calls = only_in_float32, only_in_float32
    rows = np.arange(40)[::-1]
    assert compare_models(Larger(), Larger(divided=True), x, rows, calls=calls).verdict == comparison.verdict
    wrong = compare_models(Larger(), Larger(divided=True, detached=True), x)
    assert wrong.cause is not None
    assert (wrong.cause.finding, wrong.cause.is_gradient) == ("port", True)


class Where(torch.nn.Module):
    def __init__(self, *, includes_zero: bool, slope: float = 0.0) -> None:
        super().__init__()
        self.dense, self.slope = torch.nn.Linear(4, 3), slope
        self.is_positive = torch.ge if includes_zero else torch.gt

    def forward(self, x: torch.Tensor) -> Any:
        return self.dense(torch.where(self.is_positive(x, 0), x, self.slope * x))


def test_a_choice_by_hand_ties_as_well() -> None:
    """min_norm does not see that these meet at 0."""
    x = np.random.default_rng(0).integers(-1, 2, (8, 4)).astype(F32)
    cause = compare_models(Where(includes_zero=True), Where(includes_zero=False), x).cause
    assert cause is not None
    assert cause.finding == "near ties"
    wrong = compare_models(Where(includes_zero=True), Where(includes_zero=False, slope=0.1), x * 0).cause
    assert wrong is not None
    assert (wrong.finding, wrong.is_gradient) == ("port", True)


class Roots(torch.nn.Module):
    def __init__(self, *, detached: bool) -> None:
        super().__init__()
        self.dense, self.detached = torch.nn.Linear(4, 3), detached

    def forward(self, x: torch.Tensor) -> Any:
        return self.dense(x + (x.detach() if self.detached else x)) * (1 + x.detach().sqrt().sum())


def test_nan_beside_is_no_agreement() -> None:
    """Of the roots of numbers beside 0, nothing is learned."""
    wrong = compare_models(Roots(detached=False), Roots(detached=True), np.zeros((2, 4), F32)).cause
    assert wrong is not None
    assert (wrong.finding, wrong.is_gradient) == ("port", True)


class Detached(torch.nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.detach())


class Clamped(torch.nn.Module):
    def __init__(self, layer: type[torch.nn.Linear], clamp: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.a, self.b, self.clamp = layer(4, 4), torch.nn.Linear(4, 4), clamp
        with torch.no_grad():
            self.a.weight.copy_(torch.eye(4))
            self.a.bias.zero_()

    def forward(self, x: torch.Tensor) -> Any:
        return self.b(self.clamp(self.a(x), -1, 1))


def test_ties_do_not_hide_a_bug_of_the_backward_pass() -> None:
    """The gradient comes to the ties first, and to the layer with the bug after that."""

    def of_tensors(x: torch.Tensor, low: float, high: float) -> torch.Tensor:
        """With half the gradient on a bound, in every version of torch."""
        return torch.minimum(torch.maximum(x, torch.full_like(x, low)), torch.full_like(x, high))

    x = np.random.default_rng(0).integers(-1, 2, (8, 4)).astype(F32)
    right = Clamped(torch.nn.Linear, torch.nn.functional.hardtanh)
    cause = compare_models(right, Clamped(torch.nn.Linear, of_tensors), x).cause
    assert cause is not None
    assert (cause.finding, cause.after and cause.after.name, cause.before and cause.before.name) == ("ties", "a", "b")
    wrong = compare_models(right, Clamped(Detached, of_tensors), x).cause
    assert wrong is not None
    assert (wrong.finding, wrong.layer.name, wrong.is_own_code) == ("port", "a", False)


def test_constant_inputs_are_said() -> None:
    port = torch.nn.Linear(4, 3)
    told = str(compare_models(port, port, np.ones((2, 4), F32)))
    assert "Input 0 is 1 everywhere" in told
    assert "use random inputs" in " ".join(told.split())
    assert "everywhere" not in str(compare_models(port, port, np.eye(4, dtype=F32)))


SLICE = ((0, "ones"),)
AS_WELL = [(13, "zeros")]
"""Where all in a window is equal, the element of minimum norm of a maximum is the gradient of the average."""
MORE = [(seed, inputs) for seed in range(20) for inputs in INPUTS if (seed, inputs) not in SLICE]


@pytest.mark.parametrize(
    ("seed", "inputs"), [*SLICE, *(pytest.param(*each, marks=pytest.mark.thorough) for each in MORE)]
)
def test_random_networks(seed: int, inputs: str) -> None:
    """A slice of benchmarks/porting_study.py: no port is blamed that is faithful, and bugs are found where they are."""
    right, wrong = (outcome(seed, inputs, is_faithful=is_faithful) for is_faithful in (True, False))
    assert right.finding in ("agrees", "ties", "near ties"), right
    is_missed = wrong.shows and (seed, inputs) not in AS_WELL
    assert wrong.is_right_place or not is_missed, wrong


class Hidden(torch.nn.Module):
    """Nothing of what ``b`` returns is left in the end."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.a, self.b, self.c = (torch.nn.Linear(4, 4) for _ in range(3))
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.c(torch.relu(self.b(self.function(self.a(x))) - 100))


def test_a_bug_whose_difference_dies_later_is_named_where_it_is() -> None:
    cause = compare_models(Hidden(torch.tanh), Hidden(torch.sin), IMAGES[0, 0, :, :4]).cause
    assert cause is not None
    assert (cause.is_own_code, cause.after and cause.after.name, cause.before and cause.before.name) == (True, "a", "b")
