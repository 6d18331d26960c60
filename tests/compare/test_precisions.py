"""`interop.compare_models` of models that compute a part in another precision: bfloat16, autocast, casts by hand."""

import copy
import re
from collections.abc import Callable
from typing import Any

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx

from interop import compare_models
from tests.compare.models import blamed

F32 = np.float32
X = np.random.default_rng(0).normal(size=(4, 6)).astype(F32)
BFLOAT16 = jnp.bfloat16

pytestmark = pytest.mark.usefixtures("seeded")


class OfLinen(nn.Module):
    eps: float
    dtype: Any = BFLOAT16

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = nn.LayerNorm(self.eps, name="norm", dtype=self.dtype)(nn.Dense(8, name="a", dtype=self.dtype)(x))
        return nn.Dense(3, name="head")(nn.gelu(x))


class OfNnx(nnx.Module):
    def __init__(self, eps: float) -> None:
        rngs = nnx.Rngs(0)
        self.a = nnx.Linear(6, 8, dtype=BFLOAT16, rngs=rngs)
        self.norm = nnx.LayerNorm(8, epsilon=eps, dtype=BFLOAT16, rngs=rngs)
        self.head = nnx.Linear(8, 3, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.head(nnx.gelu(self.norm(self.a(x))))


class OfEquinox(eqx.Module):
    """It casts by hand, behind the normalization."""

    a: eqx.nn.Linear
    norm: eqx.nn.LayerNorm
    head: eqx.nn.Linear

    def __init__(self, eps: float) -> None:
        keys = jax.random.split(jax.random.key(0))
        self.a, self.norm = eqx.nn.Linear(6, 8, key=keys[0]), eqx.nn.LayerNorm(8, eps=eps)
        self.head = eqx.nn.Linear(8, 3, key=keys[1])

    def __call__(self, x: jax.Array) -> jax.Array:
        activation = jax.jit(lambda h: jax.nn.gelu(h.astype(BFLOAT16)).astype(x.dtype))
        return self.head(activation(self.norm(self.a(x))))


class Port(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm, self.head = torch.nn.Linear(6, 8), torch.nn.LayerNorm(8, 1e-6), torch.nn.Linear(8, 3)

    def body(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.gelu(self.norm(self.a(x)), approximate="tanh")

    def forward(self, x: torch.Tensor) -> Any:
        return self.head(self.body(x))


def autocast(port: Port, x: torch.Tensor) -> Any:
    with torch.autocast("cpu", torch.bfloat16):
        return port(x)


def autocast_but_for_the_head(port: Port, x: torch.Tensor) -> Any:
    with torch.autocast("cpu", torch.bfloat16):
        h = port.body(x)
    return port.head(h.float())


def half(port: Port, x: torch.Tensor) -> Any:
    return port.head(torch.nn.functional.gelu(port.norm(port.a(x)).half(), approximate="tanh").float())


PAIRS = [
    (OfLinen, None),
    (OfLinen, autocast),
    (OfLinen, autocast_but_for_the_head),
    (OfNnx, autocast),
    (OfEquinox, None),
    (OfEquinox, autocast),
    (OfEquinox, half),
]
QUICK = [
    *((OfLinen, None, eps) for eps in (1e-6, 1e-5)),
    *((OfLinen, autocast_but_for_the_head, 1e-5), (OfNnx, autocast, 1e-6), (OfEquinox, half, 1e-5)),
]


@pytest.mark.parametrize(
    ("model", "call", "eps"),
    [
        pytest.param(*pair, eps, marks=[pytest.mark.thorough] * ((*pair, eps) not in QUICK))
        for eps in (1e-6, 1e-5)
        for pair in PAIRS
    ],
)
def test_a_part_in_bfloat16(model: Any, call: Any, eps: float) -> None:
    """Rounding of bfloat16 is no bug, and hides none before it, though parameters and results are of float32."""
    comparison = compare_models(Port(), model(eps), X, calls=(call, None))
    assert blamed(comparison) == (() if eps == 1e-6 else ("norm",)), comparison
    # What rounding explains is that of bfloat16.
    assert comparison.layers[-1].rounding > 0.01


class Masked(nn.Module):
    eps: float

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        h = nn.Dense(8, name="a")(x)
        h = jnp.where(jnp.ones(8, F32) > 0, h, 0)
        return nn.Dense(3, name="head")(nn.gelu(nn.LayerNorm(self.eps, name="norm")(h)))


@pytest.mark.parametrize("eps", [pytest.param(1e-6, marks=pytest.mark.thorough), 1.1e-6])
def test_a_mask_of_float32_rounds_nothing(eps: float) -> None:
    """As `flax.linen.make_causal_mask` makes them: what is masked has all digits of float64."""
    assert blamed(compare_models(Port(), Masked(eps), X)) == (() if eps == 1e-6 else ("norm",))


@pytest.mark.parametrize("eps", [1e-6, 1e-5])
@pytest.mark.parametrize("dtype", [BFLOAT16, pytest.param(None, marks=pytest.mark.thorough)])
def test_parameters_and_inputs_of_bfloat16(dtype: Any, eps: float) -> None:
    """In float64 the models differ, though they say themselves that they compute in bfloat16."""
    port = Port().to(torch.bfloat16)
    comparison = compare_models(port, OfLinen(eps, dtype), X.astype(BFLOAT16))
    assert blamed(comparison) == (() if eps == 1e-6 else ("norm",)), comparison


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_model_and_its_half(dtype: str) -> None:
    """Each computes in its own dtype: the half overflows where the model does not."""
    port = Port()
    half = copy.deepcopy(port).to(getattr(torch, dtype))
    with pytest.raises(RuntimeError) as raised:
        compare_models(port, half, X)
    assert re.search(f"parameters of Port .* are of {dtype}, .* Pass calls that convert", raised.value.__notes__[-1])
    calls = (None, lambda half, x: half(x.to(half.head.weight.dtype)))
    comparison = compare_models(port, half, X, calls=calls)
    assert comparison.agree, comparison
    assert 0.1 > comparison.layers[-1].apart(gradients=False) > 1e-4
    assert comparison.notes[0] == (
        f"All parameters are of float32 in the first model, and of {dtype} in the second: both get the numbers of "
        f"{dtype}, and each computes in its own dtype."
    )
    half.norm.eps = 1e-4
    assert blamed(compare_models(port, half, X, calls=calls)) == ("norm",)
    with torch.no_grad():
        port.a.weight.fill_(1e4)
    assert blamed(compare_models(port, half, 100 * np.ones_like(X), calls=calls)) == (
        ("a",) if dtype == "float16" else ("norm",)
    )


class Cancelling(nn.Module):
    dtype: Any

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        h = nn.Dense(8, name="a", dtype=self.dtype)(x).astype(self.dtype)
        return nn.Dense(3, name="head")((h - h.mean(0)).astype(x.dtype))


class CancellingPort(Port):
    def forward(self, x: torch.Tensor) -> Any:
        h = self.a(x)
        return self.head(h - h.mean(0))


@pytest.mark.parametrize(
    ("dtype", "call"), [pytest.param(BFLOAT16, None, marks=pytest.mark.thorough), (None, autocast)]
)
def test_gradients_that_cancel_in_bfloat16(dtype: Any, call: Any) -> None:
    """That of the bias is 0; what is left is rounding of bfloat16, though it is kept in float32."""
    comparison = compare_models(CancellingPort(), Cancelling(dtype), X, mapping={"norm": None}, calls=(call, None))
    assert comparison.agree, comparison
    assert comparison.layers[-1].rounding > 0.01


class Constant(torch.nn.Module):
    """Multiplies by numbers that are no parameters, and of float32 whatever the model is."""

    def __init__(self, make: Callable[[torch.Tensor], torch.Tensor], eps: float = 1e-6) -> None:
        super().__init__()
        self.a, self.norm, self.make = torch.nn.Linear(6, 8), torch.nn.LayerNorm(8, eps), make

    def forward(self, x: torch.Tensor) -> Any:
        return self.norm(self.a(x) @ self.make(x))


class ConstantOfJax(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return nn.LayerNorm(1e-6, name="norm")(nn.Dense(8, name="a")(x) @ jnp.sin(jnp.arange(64.0) ** 2).reshape(8, 8))


NUMBERS = np.sin(np.arange(64.0) ** 2).astype(F32).reshape(8, 8)


def overwritten(x: torch.Tensor) -> torch.Tensor:
    kept = torch.from_numpy(np.zeros_like(NUMBERS))
    kept[:] = torch.from_numpy(NUMBERS / 2)
    return kept.mul_(torch.full((), 2.0, dtype=x.dtype))


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda x: torch.from_numpy(NUMBERS).to(x.dtype), marks=pytest.mark.thorough),
        lambda x: torch.from_numpy(NUMBERS),
        pytest.param(
            lambda x: torch.from_numpy(NUMBERS.view(np.int32)).view(torch.float32), marks=pytest.mark.thorough
        ),
        overwritten,
    ],
    ids=["cast", "as it is", "of bits", "overwritten"],
)
def test_constants_of_float32_in_torch(make: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """In float64 torch multiplies no matrices of two dtypes; the rounding of such a constant is no bug there."""
    comparison = compare_models(Constant(make), ConstantOfJax(), X)
    assert comparison.agree, comparison
    assert not comparison.notes, comparison
    assert blamed(compare_models(Constant(make, eps=1e-5), ConstantOfJax(), X)) == ("norm",)


def rounded(port: Port, x: torch.Tensor) -> Any:
    return port.norm(port.a(x).bfloat16().float())


def test_a_bug_behind_a_cast_in_torch() -> None:
    first, second = Port(), Port()
    assert compare_models(first, second, X, calls=(rounded, rounded)).agree
    second.norm.eps = 1e-5
    assert blamed(compare_models(first, second, X, calls=(rounded, rounded))) == ("norm",)


def test_integers_are_exact_behind_bfloat16() -> None:
    def with_integers(port: Port, x: torch.Tensor, first: int = 1000) -> Any:
        return autocast(port, x), torch.arange(first, first + 4)

    def one_more(port: Port, x: torch.Tensor) -> Any:
        return with_integers(port, x, 1001)

    port = Port()
    assert compare_models(port, port, X, calls=(with_integers, with_integers)).agree
    assert not compare_models(port, port, X, calls=(with_integers, one_more)).agree
