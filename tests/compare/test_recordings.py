"""Recordings of `interop.record`: as files, of any dtype, and beside other inputs."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from interop import Comparison, Recording, compare, record
from tests.compare.clipped import AT, jax_clip, recording, torch_clamp

F32 = np.float32


@pytest.mark.parametrize("f", [lambda x: jax.lax.stop_gradient(x), lambda x: x.view(-1)])
def test_a_recording_shares_no_memory(f: Callable[..., Any]) -> None:
    buffer = np.zeros(64, F32)
    start = -buffer.ctypes.data % 64 // 4  # aligned as XLA wants it, to be shared
    x = buffer[start : start + 5]
    x[:] = AT
    kept = record(f, x)
    x[:] = 0.0
    np.testing.assert_array_equal(kept.unmodified["value"], AT)


def test_files(tmp_path: Path) -> None:
    x = AT.astype(jnp.bfloat16)
    live = compare(jax_clip, torch_clamp, x)
    live.first.save(tmp_path / "jax.npz")
    record(torch_clamp, x).save(str(tmp_path / "torch.npz"))
    of_jax, of_torch = Recording.load(tmp_path / "jax.npz"), Recording.load(tmp_path / "torch.npz")
    assert str(of_jax) == str(live.first)
    assert of_jax.unmodified["value"].dtype == jnp.bfloat16
    expected = live.to_json()
    assert compare(of_jax, of_torch).to_json() == expected
    assert compare(of_jax, torch_clamp, x).to_json() == expected
    assert compare(jax_clip, of_torch, x).to_json() == expected
    live.save(tmp_path / "both.npz")
    assert Comparison.load(tmp_path / "both.npz").to_json() == expected
    loose = Comparison(live.first, live.second, rtol=0.0, atol=2.0)
    loose.save(tmp_path / "loose.npz")
    assert Comparison.load(tmp_path / "loose.npz").to_json() == loose.to_json() != expected


def test_tolerances_of_numpy_are_written_as_numbers(tmp_path: Path) -> None:
    """That of ``10 * np.finfo(np.float32).eps`` is one of NumPy's."""
    side = recording(AT)
    compared = Comparison(side, side, rtol=np.float32(0.5), atol=np.float16(0.0))
    compared.save(tmp_path / "file.npz")
    assert json.loads(compared.to_json())["rtol"] == Comparison.load(tmp_path / "file.npz").rtol == 0.5


@pytest.mark.parametrize("dtype", ["float8_e5m2", "float8_e4m3fn", "bool", "complex64", "int8"])
def test_files_hold_any_dtype(dtype: str, tmp_path: Path) -> None:
    written = recording(np.array([0, 1], jnp.dtype(dtype)))
    written.save(tmp_path / "file.npz")
    loaded = Recording.load(tmp_path / "file.npz").unmodified["value"]
    assert loaded.dtype == dtype
    np.testing.assert_array_equal(loaded, written.unmodified["value"])


def test_masks_are_arguments() -> None:
    mask = np.array([True, False])
    assert record(jnp.logical_not, mask).unmodified["value"].tolist() == [False, True]


def test_files_of_the_former_format(tmp_path: Path) -> None:
    """As 0.2.0 wrote them, where labels are listed, too."""
    written = recording(F32([1.0, 2.0]))
    written.save(tmp_path / "file.npz")
    with np.load(tmp_path / "file.npz") as file:
        content = dict(file)
    about = json.loads(str(content["about"]))
    about["format"] = 3
    for described in about["recordings"]:
        described["labels"] = {"native": ["value"], "min_norm": ["value"]}
    np.savez(tmp_path / "file.npz", **content | {"about": np.array(json.dumps(about))})
    loaded = Recording.load(tmp_path / "file.npz")
    np.testing.assert_array_equal(loaded.unmodified["value"], written.unmodified["value"])


def test_files_of_something_else(tmp_path: Path) -> None:
    x = F32([1.0])
    record(jnp.sin, x).save(tmp_path / "one.npz")
    compare(jnp.sin, torch.sin, x).save(tmp_path / "two.npz")
    np.savez(tmp_path / "arrays.npz", x)
    (tmp_path / "text.npz").write_text("text")
    np.savez(tmp_path / "older.npz", about=np.array(json.dumps({"settings": {}, "recordings": []})))
    with pytest.raises(
        ValueError, match=r"older.npz' was written by another version of interop, in another format; record"
    ):
        Recording.load(tmp_path / "older.npz")
    with pytest.raises(ValueError, match=r"two.npz' holds a comparison; use Comparison.load"):
        Recording.load(tmp_path / "two.npz")
    with pytest.raises(ValueError, match=r"one.npz' holds one side; use Recording.load"):
        Comparison.load(tmp_path / "one.npz")
    with pytest.raises(ValueError, match=r"arrays.npz' holds arrays, but no recording"):
        Recording.load(tmp_path / "arrays.npz")
    with pytest.raises(ValueError, match=r"text.npz' is not an npz file"):
        Comparison.load(tmp_path / "text.npz")
    with pytest.raises(FileNotFoundError):
        Recording.load(tmp_path / "nothing.npz")


@pytest.mark.parametrize(
    ("other", "leaf"),
    [
        ((F32([2.0]), F32([1.0])), r"\[0\]"),
        ((np.array([1.0]), F32([1.0])), r"\[0\]"),
        ((F32([1.0]), F32([[1.0]])), r"\[1\]"),
        ((F32([1.0]),), r"\[1\]"),
    ],
)
def test_recordings_of_other_inputs_are_refused(other: tuple[Any, ...], leaf: str) -> None:
    first = record(lambda *xs: jnp.sin(xs[0]), F32([1.0]), F32([1.0]))
    second = record(lambda *xs: torch.sin(xs[0]), *other)
    for sides in ((first, second), (second, first)):
        with pytest.raises(ValueError, match=f"different arrays as {leaf}; record both sides from the same"):
            compare(*sides)
