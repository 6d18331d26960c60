"""What holds for all tests: the same examples in every run, no look at the clock, and eight devices to shard over."""

from collections.abc import Iterator

import hypothesis
import jax
import pytest

jax.config.update("jax_num_cpu_devices", 8)
hypothesis.settings.register_profile("repeatable", derandomize=True, deadline=None, max_examples=50)
hypothesis.settings.load_profile("repeatable")


@pytest.fixture(scope="module", autouse=True)
def compiled_programs_end_with_their_module() -> Iterator[None]:
    """Else those of all tests add up to gigabytes."""
    yield
    jax.clear_caches()
