"""A convolutional network on digits, in Equinox: rewritten, and searched for ties."""

from typing import Any

import jax
import numpy as np
import pytest

import jaxclamp
from tests.support import digits_network
from tests.support.digits_network import apart, by_code, by_hand, counts, data, in_jax, training

pytestmark = pytest.mark.usefixtures("float64")


@pytest.mark.thorough  # test_min_norm.py has a smaller network
def test_rewritten_as_by_hand() -> None:
    native, rewritten, expected = (
        jax.jit(jax.value_and_grad(loss)) for loss in (in_jax, jaxclamp.min_norm(in_jax), by_hand)
    )
    losses = []
    for params, value, gradient in training(rewritten):
        native_value, native_gradient = native(params, *data())
        np.testing.assert_array_equal(value, native_value)
        assert apart(gradient, native_gradient) > 0.01
        expected_value, expected_gradient = expected(params, *data())
        np.testing.assert_array_equal(value, expected_value)
        assert apart(gradient, expected_gradient) < 1e-14  # XLA fuses, and so sums, in its own order
        losses.append(value)
    assert losses[-1] < losses[0]


def test_ties_in_jax() -> None:
    """Those of all steps of training, within jit and with the gradient; no gradient depends on softmax's maximum."""
    step = jaxclamp.ties(jax.jit(jax.value_and_grad(in_jax)))
    reports = []

    def counting(*args: Any) -> Any:
        result, report = step(*args)
        reports.append(report)
        return result

    bounded, pooled, clipped, hidden = sum(counts(params) for params, _, _ in training(counting)).tolist()
    assert min(tied for _, tied in (bounded, pooled, clipped, hidden)) > 0
    assert by_code(sum(reports, jaxclamp.TieReport()), digits_network.__file__) == {
        ("h = jax.nn.hard_tanh(self.first(x))", "hardtanh"): bounded,
        ("h = self.pool(h)", "max_pool"): pooled,
        ("h = jnp.clip(self.second(h), 0.0, 1.0)", "clamp"): clipped,
        ("h = jax.nn.relu6(self.dense(h.ravel()))", "relu6"): hidden,
    }
