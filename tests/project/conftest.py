"""A module with functions that commands are called with, and a file with their arguments."""

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

CODE = """
import jax, torch
class Network(torch.nn.Module):
    def forward(self, x, w): return self.bounded(x * w[0]).abs()
    def __init__(self): super().__init__(); self.bounded = torch.nn.Hardtanh(0.0, 6.0)
network = Network()
def in_jax(x, w):
    h = jax.numpy.clip(x * w[0], 0.0, 6.0)
    return abs(h), jax.numpy.where(h > 1.0, h, 1.0)
def in_neither(x, w): return x.entries
weight = torch.nn.Parameter(torch.zeros(2))
def trained(x, a): return (torch.cat([weight, x.flatten()]) * 2).clamp(0.0, 6.0)
def stepping(x, a):
    loss = trained(x, a).sum()
    with torch.no_grad(): weight.add_(1.0)
    return loss
held = jax.numpy.ones(3)
def of_held(x, a): return jax.numpy.clip(x * held, 0.0, 6.0)
def of_one(x): return x
def raising(x, w): raise ValueError("of the function")
def in_both(x, w): print("a step"); return (x * w[0]).clip(0.0, 6.0)
"""


@pytest.fixture
def inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module ``tying`` to import, and a file with arguments for its functions, not in the order of the alphabet."""
    (tmp_path / "tying.py").write_text(CODE)
    monkeypatch.syspath_prepend(tmp_path)
    # The last product is above 6 by as little as float32 would round away.
    np.savez(
        tmp_path / "inputs.npz", x=np.array([[-1.0, 0.0, 1.0], [2.0, 3.0, 3.0 + 1e-9]]), a=np.array([2.0, 2.0, 2.0])
    )
    yield str(tmp_path / "inputs.npz")
    sys.modules.pop("tying", None)
