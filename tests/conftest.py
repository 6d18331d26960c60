"""What holds for all tests: the same examples in every run, no look at the clock, and eight devices to shard over."""

import gc
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


@pytest.fixture
def strictest_settings() -> Iterator[None]:
    """JAX's strictest settings, under which valid use raises nothing."""
    gc.collect()
    gc.freeze()  # to find leaks, JAX looks through all that is not frozen, after each trace
    with (
        jax.numpy_dtype_promotion("strict"),
        jax.numpy_rank_promotion("raise"),
        jax.debug_nans(True),
        jax.checking_leaks(),
    ):
        yield
    gc.unfreeze()
