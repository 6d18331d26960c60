"""A convolutional network on digits, in torch: searched for ties, and trained and compared with that in Equinox."""

import jax
import numpy as np
import pytest
import torch
from torch.nn import functional

import interop
import jaxclamp
from tests.support.digits_network import Arrays, apart, by_code, counts, data, in_jax, initial, rounded, training

pytestmark = pytest.mark.usefixtures("float64")


class Ported(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Conv2d(1, 4, 3), torch.nn.Conv2d(4, 8, 2)
        self.dense, self.head = torch.nn.Linear(32, 16), torch.nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = functional.hardtanh(self.first(x))
        h = functional.max_pool2d(h, 2)
        h = self.second(h).clamp(0.0, 1.0)
        h = functional.relu6(self.dense(h.flatten(1)))
        return self.head(h)


PORTED = Ported()


def in_torch(params: dict[str, torch.Tensor], x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(torch.func.functional_call(PORTED, params, (x,)), labels)


def torch_value_and_grad(params: Arrays, x: np.ndarray, labels: np.ndarray) -> tuple[float, Arrays]:
    leaves = {name: torch.tensor(value, requires_grad=True) for name, value in params.items()}
    value = in_torch(leaves, torch.from_numpy(x), torch.from_numpy(labels))
    gradients = torch.autograd.grad(value, list(leaves.values()))
    return value.item(), {name: g.numpy() for name, g in zip(leaves, gradients, strict=True)}


def test_ties_in_torch() -> None:
    with interop.ties() as counted:
        steps = list(training(torch_value_and_grad))
    bounded, pooled, clipped, hidden = sum(counts(params) for params, _, _ in steps).tolist()
    assert by_code(counted.report, __file__) == {
        ("h = functional.hardtanh(self.first(x))", "hardtanh"): bounded,
        ("h = functional.max_pool2d(h, 2)", "max_pool2d"): pooled,
        ("h = self.second(h).clamp(0.0, 1.0)", "clamp"): clipped,
        ("h = functional.relu6(self.dense(h.flatten(1)))", "relu6"): hidden,
    }


@pytest.mark.parametrize("convention", ["min_norm", "native"])
def test_training_in_both_frameworks(convention: str) -> None:
    """Under the convention they stay together to rounding; natively each step takes them apart."""
    if convention == "min_norm":
        in_jax_steps = training(jax.jit(jax.value_and_grad(jaxclamp.min_norm(in_jax))))
        in_torch_steps = training(interop.min_norm()(torch_value_and_grad))
    else:
        in_jax_steps, in_torch_steps = training(jax.jit(jax.value_and_grad(in_jax))), training(torch_value_and_grad)
    for (params, value, gradient), (ported_params, ported_value, ported_gradient) in zip(
        in_jax_steps, in_torch_steps, strict=True
    ):
        if convention == "min_norm":
            jax.tree.map(np.testing.assert_array_equal, params, ported_params)
            np.testing.assert_allclose(value, ported_value, rtol=1e-14)
            assert apart(gradient, ported_gradient) < 1e-14
        else:
            assert apart(gradient, ported_gradient) > 0.01


@pytest.mark.thorough
def test_compare_names_ties_as_the_cause() -> None:
    arguments = (rounded(initial()), *data())
    comparison = interop.compare(in_jax, in_torch, *arguments)
    assert comparison.verdict.startswith("jax against torch: they disagree because of ties alone.")
    # Above the bounds that the frameworks differentiate differently, nothing differs.
    affected = [f"gradient[0]['{name}.{kind}']" for name in ("first", "second") for kind in ("bias", "weight")]
    assert [leaf.label for leaf in comparison.leaves if leaf.finding == "ties"] == [*affected, "gradient[1]"]
    assert {leaf.finding for leaf in comparison.leaves} == {"agrees", "ties"}
