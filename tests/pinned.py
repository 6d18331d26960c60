"""Whether the versions are installed of which documentation tells the answers."""

from pathlib import Path

import jax
import pytest
import torch

_PINNED = (Path(__file__).parent.parent / "constraints.txt").read_text("utf-8").split()
_INSTALLED = (f"torch=={torch.__version__.partition('+')[0]}", f"jax=={jax.__version__}")

of_pinned = pytest.mark.skipif(
    not set(_INSTALLED) <= set(_PINNED), reason="documentation tells what the pinned versions of torch and JAX answer"
)
