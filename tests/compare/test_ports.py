"""Ports that others wrote: models of transformers, in Flax and in torch, with random weights."""

import os
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch

from interop import ModelComparison, compare_models

pytestmark = pytest.mark.thorough

IDS = np.random.default_rng(0).integers(1, 50, (2, 12)).astype(np.int32)
IMAGES = np.random.default_rng(0).normal(size=(2, 32, 32, 3)).astype(np.float32)
TEXT = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
PATCHES = {name: TEXT[name] for name in TEXT if name != "vocab_size"} | {"image_size": 32, "patch_size": 8}
STAGES = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [2, 2]}


@pytest.fixture
def transformers(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setitem(os.environ, "HF_HUB_OFFLINE", "1")
    package = pytest.importorskip("transformers", reason="transformers is not installed")
    if not hasattr(package, "FlaxBertModel"):
        pytest.skip("this version of transformers has no models of Flax; pip install 'transformers<5'")
    package.logging.set_verbosity_error()
    return package


def pair(transformers: Any, name: str, **settings: Any) -> tuple[Any, Any]:
    """The module of Flax, and the model of torch, whose parameters it gets."""
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**settings)
    flax = getattr(transformers, f"Flax{name}Model")(config, _do_init=False)
    return flax.module, getattr(transformers, f"{name}Model")(config).eval()


def first_two(model: Any, x: Any) -> Any:
    return model(x)[:2]


def positions(ids: Any, start: int = 0) -> Any:
    return jnp.broadcast_to(jnp.arange(start, start + ids.shape[1]), ids.shape)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("ResNet", STAGES),
        ("ResNet", STAGES | {"layer_type": "basic"}),
        ("RegNet", STAGES | {"groups_width": 8}),
        ("ViT", PATCHES),
        ("Dinov2", PATCHES),
    ],
    ids=["bottlenecks", "basic", "RegNet", "ViT", "Dinov2"],
)
def test_models_of_images_agree(transformers: Any, name: str, settings: Any) -> None:
    flax, port = pair(transformers, name, **settings)
    comparison = compare_models(flax, port, IMAGES, calls=(first_two, first_two))
    assert comparison.agree, comparison
    assert len(comparison.layers) > 35


def test_gpt2_agrees(transformers: Any) -> None:
    flax, port = pair(transformers, "GPT2", vocab_size=50, n_embd=32, n_layer=2, n_head=2, n_positions=20)
    calls = (
        lambda model, ids: model(ids, jnp.ones_like(ids), positions(ids))[0],
        lambda model, ids: model(ids.long(), use_cache=False)[0],
    )
    comparison = compare_models(flax, port, IDS, calls=calls)
    assert comparison.agree, comparison


def of_text(transformers: Any, name: str, start: int, ids: Any, **settings: Any) -> ModelComparison:
    flax, port = pair(transformers, name, **TEXT, max_position_embeddings=20, **settings)
    calls = (
        lambda model, ids: model(ids, jnp.ones_like(ids), jnp.zeros_like(ids), positions(ids, start), None)[:2],
        lambda model, ids: model(ids.long(), torch.ones_like(ids))[:2],
    )
    return compare_models(flax, port, ids, calls=calls)


def test_bert_gives_another_gradient_to_padding(transformers: Any) -> None:
    """The embedding of torch has a padding_idx, whose row gets no gradient; that of Flax knows no such thing."""
    assert of_text(transformers, "Bert", 0, IDS).agree
    padded = of_text(transformers, "Bert", 0, np.where(IDS % 5 == 0, 0, IDS).astype(np.int32))
    assert padded.cause is not None
    assert padded.cause.is_gradient
    assert [(part.what, part.name) for part in padded.cause.parts] == [
        ("parameters", "embeddings.word_embeddings.embedding")
    ]
    assert "padding_idx=0" in str(padded)


def test_roberta_counts_positions_from_behind_the_padding(transformers: Any) -> None:
    ids = np.where(IDS == 1, 2, IDS).astype(np.int32)
    wrong = of_text(transformers, "Roberta", 0, ids, pad_token_id=1)
    assert wrong.cause is not None
    assert (wrong.cause.layer.first.path, wrong.cause.is_own_code) == ("embeddings", True)
    assert wrong.cause.before is not None
    assert wrong.cause.before.first.path == "embeddings.position_embeddings"
    assert of_text(transformers, "Roberta", 2, ids, pad_token_id=1).agree
