"""Networks on which the chain rule goes wrong: in torch, whose derivatives are those of the proofs."""

from typing import Any

import jax
import pytest
import torch
from torch.nn import functional

import interop
from tests.support.lemmas import PARAMS, TRUE, Network, X, distance, mean_of_the_sides, slopes, two_layers


def lemma_2_in_torch(w: torch.Tensor) -> torch.Tensor:
    return torch.relu(w[0]) - torch.relu(-w[0])


def lemma_3_in_torch(w: torch.Tensor) -> torch.Tensor:
    return functional.hardsigmoid(torch.tensor([3.0, -3.0]) + w).sum()


def lemma_7_in_torch(w: torch.Tensor) -> torch.Tensor:
    u, b = w
    return torch.stack([u + b, b]).max(0).values - torch.stack([-u + b, b]).max(0).values


def uneven_pools_in_torch(w: torch.Tensor) -> torch.Tensor:
    u, b = w
    return torch.stack([u + b, b]).max(0).values - torch.stack([-u + b, b, b]).max(0).values


CHAIN_RULE: dict[str, tuple[Network, list[float]]] = {
    "lemma 2": (lemma_2_in_torch, [0]),
    "lemma 3": (lemma_3_in_torch, [0]),
    "lemma 7": (lemma_7_in_torch, [2, 0]),
    "uneven pools": (uneven_pools_in_torch, [2, 0]),
}
"""The networks, and what the chain rule gives at 0."""


def test_networks_of_the_lemmas() -> None:
    """The chain rule is wrong on each of them; as a whole program it is right, along any direction."""
    for name, (network, wanted) in CHAIN_RULE.items():
        at, true = torch.zeros(len(TRUE[name])), pytest.approx(TRUE[name])
        assert slopes(lambda w, f=network: f(torch.from_numpy(w)), len(at)) == true
        assert torch.func.grad(network)(at).tolist() == pytest.approx(wanted)
        assert wanted != TRUE[name]
        for seed in range(8):
            generator = torch.Generator().manual_seed(seed)
            assert interop.grad(network, generator=generator)(at).tolist() == true


def test_balanced_meets_theorem_6() -> None:
    with jax.enable_x64(True):
        wanted = mean_of_the_sides(PARAMS)
    tensors = {name: torch.from_numpy(value) for name, value in PARAMS.items()}

    def in_torch(params: Any) -> torch.Tensor:
        return two_layers(functional.relu6, torch.matmul, params, torch.from_numpy(X))

    with interop.min_norm(ties="balanced"):
        found = torch.func.grad(in_torch)(tensors)
    assert distance(found, wanted) <= 1e-6
