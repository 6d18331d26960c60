"""In which framework `interop.compare` calls a function, and what it says if neither works."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from interop import Comparison, compare, record
from tests.compare.clipped import AT, findings, jax_clip, torch_clamp

F32 = np.float32


def in_both(x: Any) -> Any:
    return x.clip(0.0, 6.0).sum()


def deviation(x: Any) -> Any:
    """Of the sample in torch, of the population in JAX."""
    return x.std()


def ran(comparison: Comparison) -> str:
    return f"{comparison.first.framework} {comparison.second.framework}"


@pytest.mark.parametrize(
    ("f", "g", "frameworks"),
    [
        (lambda x: jnp.clip(x, 0.0, 6.0).sum(), in_both, "jax torch"),
        (in_both, lambda x: jnp.clip(x, 0.0, 6.0).sum(), "torch jax"),
        (in_both, lambda x: torch.clamp(x, 0.0, 6.0).sum(), "jax torch"),
        (lambda x: jnp.sum(jnp.asarray(x)), in_both, "jax torch"),  # JAX takes torch's tensors there
        (torch.nn.ReLU6(), in_both, "torch jax"),
        (torch.nn.ReLU6(), torch.nn.functional.relu6, "torch torch"),
    ],
)
def test_the_frameworks_are_inferred(f: Callable[..., Any], g: Callable[..., Any], frameworks: str) -> None:
    comparison = compare(f, g, AT)
    assert ran(comparison) == frameworks
    assert comparison.verdict.startswith(f"{frameworks.replace(' ', ' against ')}: ")
    assert ran(compare(f, g, torch.from_numpy(AT))) == frameworks
    if f is not in_both:
        assert ran(compare(record(f, AT), g, AT)) == frameworks


def test_where_both_sides_run_in_both_frameworks_they_are_named() -> None:
    with pytest.raises(TypeError, match=r"f, deviation, and g, deviation, run in JAX and in torch.*frameworks=\(\"jax"):
        compare(deviation, deviation, AT)
    assert compare(deviation, deviation, AT, frameworks=("jax", "jax")).agree
    between = compare(deviation, deviation, AT, frameworks=("jax", "torch"))
    assert ran(between) == "jax torch"
    assert findings(between)["value"] == "port"
    assert ran(compare(deviation, deviation, AT, frameworks=("torch", "jax"))) == "torch jax"
    with pytest.raises(TypeError, match=r'deviation runs in JAX and in torch.*framework="torch"'):
        record(deviation, AT)
    of_torch = record(deviation, AT, framework="torch")
    assert of_torch.framework == "torch"
    assert ran(compare(of_torch, deviation, AT)) == "torch jax"
    assert ran(compare(of_torch, deviation, AT, frameworks=("torch", "torch"))) == "torch torch"


def test_a_named_framework_is_the_only_one_asked() -> None:
    def seen(x: Any) -> Any:
        asked.add(isinstance(x, torch.Tensor))
        return x * 2

    for frameworks, tensors in ((("jax", "jax"), {False}), (("torch", "torch"), {True})):
        asked: set[bool] = set()
        compare(seen, seen, AT, frameworks=frameworks)
        assert asked == tensors


def test_bad_frameworks() -> None:
    recorded = record(jnp.sin, AT)
    for frameworks in ("jax", ("jax",), ("jax", "tensorflow"), ("jax", "torch", "jax"), 2):
        with pytest.raises(
            ValueError, match=r"compare: frameworks=.* does not name two; give .* such as \(\"jax\", \"torch"
        ):
            compare(jnp.sin, torch.sin, AT, frameworks=frameworks)
    with pytest.raises(ValueError, match=r"g is a torch.nn.Module, and runs in torch; it cannot be called in jax"):
        compare(jnp.sin, torch.nn.ReLU(), AT, frameworks=("jax", "jax"))
    with pytest.raises(ValueError, match="compare: f was recorded in jax, and frameworks names torch"):
        compare(recorded, torch.sin, AT, frameworks=("torch", "torch"))
    with pytest.raises(ValueError, match="record: framework='numpy' is unknown; name one of jax, torch"):
        record(jnp.sin, AT, framework="numpy")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"clamp\(\)") as raised:  # what torch says of JAX's arrays
        compare(jax_clip, torch_clamp, AT, frameworks=("jax", "jax"))
    assert raised.value.__notes__[-1:] == ["torch_clamp was called with arrays of jax."]


def test_an_error_of_the_function_itself_is_its_own() -> None:
    def broken(x: Any) -> Any:
        raise KeyError("the weights")

    def broken_in_torch(x: torch.Tensor) -> torch.Tensor:
        return torch.clamp(x, 0.0) @ torch.ones(7)

    def breaks_under_gradients(x: Any) -> Any:
        return (x * 2).numpy() if isinstance(x, torch.Tensor) else torch.relu(x)

    with pytest.raises(KeyError, match="the weights") as raised:
        record(broken, F32([1.0]))
    assert raised.traceback[-1].name == "broken"
    assert raised.value.__notes__ == ["broken raised this with JAX arrays and with torch tensors."]
    with pytest.raises(
        TypeError,
        match=r"broken_in_torch takes neither JAX arrays \(TypeError: clamp.* nor torch tensors \(RuntimeError",
    ) as refused:
        compare(broken_in_torch, jnp.sin, AT)
    with pytest.raises(TypeError, match=r"g is the class ReLU; pass a module of it, such as ReLU\(\)"):
        compare(jax.nn.relu, torch.nn.ReLU, AT)
    cause = refused.value.__cause__
    assert isinstance(cause, ExceptionGroup)
    assert cause.exceptions[1].__traceback__ is not None
    with pytest.raises(RuntimeError, match="numpy") as named:
        compare(jax_clip, breaks_under_gradients, AT)
    assert named.traceback[-1].name == "breaks_under_gradients"


@pytest.mark.filterwarnings("ignore:__array_wrap__ must accept:DeprecationWarning")
def test_a_function_of_numpy_is_explained() -> None:
    says = "A function of NumPy, such as np.maximum, has no gradient in either framework: call the framework's own"

    def in_torch(x: Any) -> Any:
        return torch.tanh(torch.as_tensor(np.maximum(x, 0.0)))

    with pytest.raises(RuntimeError) as raised:
        compare(lambda x: jnp.tanh(x), in_torch, AT, frameworks=("jax", "torch"))
    assert says in raised.value.__notes__[0]
    for named in (None, ("jax", "torch")):
        with pytest.raises(Exception, match=r"np.maximum|__array__") as of_jax:
            compare(lambda x: jnp.tanh(np.maximum(x, 0.0)), torch.tanh, AT, frameworks=named)
        assert says in "".join([str(of_jax.value), *getattr(of_jax.value, "__notes__", ())])
